"""Keys that a process keeps true: what is written in the store is in force without a wait for the next round."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, closing, suppress
from glob import glob
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException
from support.clock import LoopClock, until

from serve.access.key_file import KeyTerms, key_row
from serve.access.key_record import KeyChanges
from serve.access.key_store import KeyStore, issue
from serve.access.live import LiveAccess, OpenAccess, live_access
from serve.config.access import AccessConfig
from serve.errors import InvalidApiKeyError, SharedStateError
from serve.shared.link import LocalLink
from serve.shared.ray_link import HandleLink

TERMS = KeyTerms(tenant="red", name="ci")
REQUIRED = AccessConfig(mode="required", state_dir="keys")


class PatientStore(KeyStore):
    """A store that answers only once there is something new."""

    async def sync_keys(self, version: int, used: Collection[str], wait_s: float = 1e9) -> KeyChanges:
        return await super().sync_keys(version, used, wait_s)


class CountedStore(KeyStore):
    """A store that counts how often it is asked."""

    asked = 0

    async def sync_keys(self, version: int, used: Collection[str], wait_s: float = 1.0) -> KeyChanges:
        self.asked += 1
        return await super().sync_keys(version, used, wait_s)


class BrokenStore:
    """A store that can never be reached."""

    asked = 0

    async def sync_keys(self, version: int, used: frozenset[str]) -> KeyChanges:
        self.asked += 1
        raise SharedStateError("gone")


class LosingStore(KeyStore):
    """A store that answers at once, and whose answers get lost at first."""

    lost = 2
    used: frozenset[str] = frozenset()

    async def sync_keys(self, version: int, used: Collection[str], wait_s: float = 0.0) -> KeyChanges:
        changes = await super().sync_keys(version, used, wait_s)
        if used and self.lost:
            self.lost -= 1
            raise SharedStateError("gone")
        self.used |= frozenset(used)
        return changes


@asynccontextmanager
async def running(access: LiveAccess) -> AsyncIterator[None]:
    task = asyncio.create_task(access.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_each_change_ends_the_wait_for_it_also_one_that_another_process_writes(tmp_path: Path) -> None:
    with closing(PatientStore(tmp_path)) as owner, closing(KeyStore(tmp_path)) as command_line:
        access = LiveAccess(REQUIRED, LocalLink(owner))
        async with running(access):
            for store in (owner, command_line, owner):
                issued = store.create(TERMS)
                await until(lambda token=issued.token: is_known(access, token))  # type: ignore[misc]
                store.revoke(issued.key.id)
                await until(lambda token=issued.token: not is_known(access, token))  # type: ignore[misc]


@pytest.mark.asyncio(loop_scope="function")
async def test_without_news_the_store_is_asked_once_a_second(clock: LoopClock, tmp_path: Path) -> None:
    with closing(CountedStore(tmp_path)) as store:
        async with running(LiveAccess(REQUIRED, LocalLink(store))):
            for _ in range(100):
                await clock.advance(0.05)
            assert 4 <= store.asked <= 7


@pytest.mark.asyncio(loop_scope="function")
async def test_a_store_that_fails_at_once_is_not_asked_in_a_busy_loop(clock: LoopClock) -> None:
    store = BrokenStore()
    async with running(LiveAccess(REQUIRED, LocalLink(store))):
        for _ in range(100):
            await clock.advance(0.05)
        assert 4 <= store.asked <= 7


@pytest.mark.asyncio(loop_scope="function")
async def test_a_store_without_news_answers_after_a_second_with_the_version_that_was_known(
    clock: LoopClock, tmp_path: Path
) -> None:
    with closing(KeyStore(tmp_path)) as store:
        known = (await store.sync_keys(0, frozenset())).version
        asked = asyncio.create_task(store.sync_keys(known, frozenset()))
        await clock.advance(0.9)
        assert not asked.done()
        await clock.advance(0.2)
        assert await asked == KeyChanges(known)


async def test_a_file_that_can_not_be_looked_at_holds_up_no_revoked_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, away = tmp_path / "keys.yaml", threading.Event()
    file.write_text("tenants: {}", encoding="utf-8")
    with closing(KeyStore(tmp_path)) as store:
        access = LiveAccess(REQUIRED.model_copy(update={"file": str(file)}), LocalLink(store))
        looked_at = Path.stat

        def stat(path: Path, **more: Any) -> os.stat_result:
            if path == file:
                away.wait()
            return looked_at(path, **more)

        monkeypatch.setattr(Path, "stat", stat)
        issued = store.create(TERMS)
        try:
            async with running(access):
                await until(lambda: is_known(access, issued.token))
                store.revoke(issued.key.id)
                await until(lambda: not is_known(access, issued.token))
        finally:
            away.set()


async def test_a_file_that_is_being_written_ends_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that is there already may be sound, up to the end of a key."""
    file, first, second = tmp_path / "keys.yaml", issue(TERMS, 0.0), issue(TERMS, 0.0)
    part = f"keys:\n{key_row(first.key)}"
    whole = part + key_row(second.key)
    file.write_text(whole, encoding="utf-8")
    access = LiveAccess(AccessConfig(mode="required", file=str(file)), None)
    looks, looked_at = count(), Path.stat

    def stat(path: Path, **more: Any) -> os.stat_result:
        if path == file and next(looks) == 1:  # it was read meanwhile
            file.write_text(f"{whole}tenants: {{red: {{weight: 7}}}}\n", encoding="utf-8")
        return looked_at(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    file.write_text(part, encoding="utf-8")
    await access.refresh()
    assert is_known(access, second.token)
    await access.refresh()
    assert is_known(access, second.token)
    assert access.ring.tenant("red").weight == 7


async def test_an_empty_file_ends_no_key_and_one_without_keys_ends_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, held = tmp_path / "keys.yaml", issue(TERMS, 0.0)
    file.write_text(f"keys:\n{key_row(held.key)}", encoding="utf-8")
    access = LiveAccess(AccessConfig(mode="required", file=str(file)), None)
    file.write_text("", encoding="utf-8")
    await access.refresh()
    assert is_known(access, held.token)
    assert "it is empty" in caplog.text
    file.write_text("keys: []", encoding="utf-8")
    await access.refresh()
    assert not is_known(access, held.token)


async def test_which_keys_were_used_is_known_even_if_an_answer_gets_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(LosingStore(tmp_path)) as store:
        access = LiveAccess(REQUIRED, LocalLink(store))
        issued = store.create(TERMS)
        await access.refresh()
        assert is_known(access, issued.token)
        for _ in range(3):
            await access.refresh()
        assert store.used == {issued.key.id}
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
    return HandleLink(admin_api)


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
