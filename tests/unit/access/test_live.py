"""Keys that a process keeps true: what is written in the store is in force without a wait for the next round."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from serve.access import live
from serve.access.key_file import KeyTerms
from serve.access.key_record import KeyChanges
from serve.access.key_store import KeyStore
from serve.access.live import LiveAccess, LocalKeySource
from serve.config.access import AccessConfig
from serve.errors import InvalidApiKeyError, SharedStateError

TERMS = KeyTerms(tenant="red", name="ci")
REQUIRED = AccessConfig(mode="required", state_dir="keys")


class CountedSource(LocalKeySource):
    """A source that counts how often it is asked."""

    asked = 0

    async def sync(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked += 1
        return await super().sync(version, used)


class BrokenSource:
    """A source that can never be reached."""

    asked = 0

    async def sync(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked += 1
        raise SharedStateError("gone")

    def close(self) -> None:
        """Does nothing."""


class LosingSource(LocalKeySource):
    """A source whose answers get lost at first."""

    lost = 2
    used: frozenset[str] = frozenset()

    async def sync(self, version: int, used: frozenset[str]) -> KeyChanges:
        changes = await super().sync(version, used)
        if used and self.lost:
            self.lost -= 1
            raise SharedStateError("gone")
        self.used |= used
        return changes


async def until(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happens():  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.01)


async def test_each_change_ends_the_wait_for_it_also_one_that_another_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 1e9)
    with closing(KeyStore(tmp_path)) as owner, closing(KeyStore(tmp_path)) as command_line:
        access = LiveAccess(REQUIRED, LocalKeySource(owner))
        running = asyncio.create_task(access.run())
        for store in (owner, command_line, owner):
            issued = store.create(TERMS)
            await until(lambda token=issued.token: is_known(access, token))  # type: ignore[misc]
            store.revoke(issued.key.id)
            await until(lambda token=issued.token: not is_known(access, token))  # type: ignore[misc]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_without_news_the_store_is_asked_once_a_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.2)
    with closing(KeyStore(tmp_path)) as store:
        source = CountedSource(store)
        access = LiveAccess(REQUIRED, source)
        with suppress(TimeoutError):
            await asyncio.wait_for(access.run(), 1.0)
        assert 2 <= source.asked <= 6


async def test_a_store_that_fails_at_once_is_not_asked_in_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.2)
    source = BrokenSource()
    with suppress(TimeoutError):
        await asyncio.wait_for(LiveAccess(REQUIRED, source).run(), 1.0)
    assert 2 <= source.asked <= 5


async def test_a_store_without_news_answers_after_a_period_with_the_version_that_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.1)
    with closing(KeyStore(tmp_path)) as store:
        source = LocalKeySource(store)
        known = (await source.sync(0, frozenset())).version
        assert await source.sync(known, frozenset()) == KeyChanges(known)


async def test_which_keys_were_used_is_known_even_if_an_answer_gets_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.01)
    with closing(KeyStore(tmp_path)) as store:
        source = LosingSource(store)
        access = LiveAccess(REQUIRED, source)
        issued = store.create(TERMS)
        await access.refresh()
        assert is_known(access, issued.token)
        for _ in range(3):
            await access.refresh()
        assert source.used == {issued.key.id}
    assert len(caplog.records) == 2, "one line when it falls silent, one when it is back"


def is_known(access: LiveAccess, token: str) -> bool:
    try:
        return access.ring.authenticate({"authorization": f"Bearer {token}"}).tenant.name == "red"
    except (InvalidApiKeyError, SharedStateError):
        return False
