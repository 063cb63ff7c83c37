"""A replica asks the admin API for changes of keys; an admin API that is away is an error that says so."""

from glob import glob
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from serve.access.key_record import KeyChanges
from serve.access.live import OpenAccess
from serve.config.access import AccessConfig
from serve.errors import SharedStateError
from serve.gateway.key_source import AdminKeySource, live_access
from serve.shared.ray_link import HandleLink

CHANGES = KeyChanges(3, (), ())


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


async def test_the_door_is_asked_for_changes_after_the_version_that_is_known() -> None:
    admin_api: Any = AdminApi(CHANGES)
    assert await AdminKeySource(HandleLink(admin_api, "the admin API")).sync(2, frozenset({"k"})) is CHANGES
    assert admin_api.asked == [(2, frozenset({"k"}))]


@pytest.mark.parametrize("error", [RayServeException("gone"), TimeoutError()])
async def test_an_admin_api_that_is_away_is_a_lost_state(error: Exception) -> None:
    admin_api: Any = AdminApi(error)
    with pytest.raises(SharedStateError, match="does not send keys"):
        await AdminKeySource(HandleLink(admin_api, "the admin API")).sync(0, frozenset())


async def test_keys_come_from_the_door_where_there_is_one(tmp_path: Path) -> None:
    admin_api: Any = AdminApi(CHANGES)
    access = live_access(AccessConfig(mode="required", state_dir=str(tmp_path)), HandleLink(admin_api, "the admin API"))
    await access.refresh()
    assert access.ring.version == CHANGES.version
    assert not glob(f"{tmp_path}/*"), "the store is the admin API's"


def test_without_access_control_no_source_is_opened() -> None:
    assert isinstance(live_access(AccessConfig(mode="off"), None), OpenAccess)
