"""Keys that a process keeps true: what is written in the store is in force without a wait for the next round."""

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from serve.access import live
from serve.access.key_file import KeyTerms
from serve.access.key_record import KeyChanges
from serve.access.key_store import KeyStore
from serve.access.live import KeyFeed, LiveAccess, OpenAccess, live_access
from serve.config.access import AccessConfig
from serve.errors import InvalidApiKeyError, SharedStateError
from serve.shared.link import LocalLink
from serve.shared.ray_link import HandleLink

TERMS = KeyTerms(tenant="red", name="ci")
REQUIRED = AccessConfig(mode="required", state_dir="keys")


class CountedFeed(KeyFeed):
    """A feed that counts how often it is asked."""

    asked = 0

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked += 1
        return await super().sync_keys(version, used)


class BrokenFeed:
    """A feed that can never be reached."""

    asked = 0

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked += 1
        raise SharedStateError("gone")


class LosingFeed(KeyFeed):
    """A feed whose answers get lost at first."""

    lost = 2
    used: frozenset[str] = frozenset()

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        changes = await super().sync_keys(version, used)
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
        access = LiveAccess(REQUIRED, LocalLink(KeyFeed(owner)))
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
        feed = CountedFeed(store)
        access = LiveAccess(REQUIRED, LocalLink(feed))
        with suppress(TimeoutError):
            await asyncio.wait_for(access.run(), 1.0)
        assert 2 <= feed.asked <= 6


async def test_a_store_that_fails_at_once_is_not_asked_in_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.2)
    feed = BrokenFeed()
    with suppress(TimeoutError):
        await asyncio.wait_for(LiveAccess(REQUIRED, LocalLink(feed)).run(), 1.0)
    assert 2 <= feed.asked <= 5


async def test_a_store_without_news_answers_after_a_period_with_the_version_that_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.1)
    with closing(KeyStore(tmp_path)) as store:
        feed = KeyFeed(store)
        known = (await feed.sync_keys(0, frozenset())).version
        assert await feed.sync_keys(known, frozenset()) == KeyChanges(known)


async def test_which_keys_were_used_is_known_even_if_an_answer_gets_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "_SYNC_PERIOD_S", 0.01)
    with closing(KeyStore(tmp_path)) as store:
        feed = LosingFeed(store)
        access = LiveAccess(REQUIRED, LocalLink(feed))
        issued = store.create(TERMS)
        await access.refresh()
        assert is_known(access, issued.token)
        for _ in range(3):
            await access.refresh()
        assert feed.used == {issued.key.id}
    assert len(caplog.records) == 2, "one line when it falls silent, one when it is back"


class AdminApi:
    """The admin API's handle: answers, or raises what it was given."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[tuple[int, frozenset[str]]] = []
        self.sync_keys = self
        self._answer = answer

    async def remote(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked.append((version, used))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


def at(admin_api: Any) -> HandleLink:
    return HandleLink(admin_api, "the admin API")


async def test_a_gateway_replica_asks_the_admin_api_and_leaves_its_store_alone(tmp_path: Path) -> None:
    admin_api = AdminApi(KeyChanges(3))
    access = live_access(AccessConfig(mode="required", state_dir=str(tmp_path)), at(admin_api))
    await access.refresh()
    await access.refresh()
    assert access.ring.version == 3
    assert admin_api.asked == [(0, frozenset()), (3, frozenset())]
    assert not glob(f"{tmp_path}/*")


@pytest.mark.parametrize("error", [RayServeException("gone"), TimeoutError()])
async def test_an_admin_api_that_is_away_is_told_once(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    access = live_access(AccessConfig(mode="required", state_dir=str(tmp_path)), at(AdminApi(error)))
    await access.refresh()
    await access.refresh()
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the admin API can't be reached"]


def test_without_access_control_no_store_is_opened() -> None:
    assert isinstance(live_access(AccessConfig(mode="off"), None), OpenAccess)


def is_known(access: LiveAccess, token: str) -> bool:
    try:
        return access.ring.authenticate({"authorization": f"Bearer {token}"}).tenant.name == "red"
    except (InvalidApiKeyError, SharedStateError):
        return False
