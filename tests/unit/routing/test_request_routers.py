"""A reservation that nobody waits for any more: its slot is released after it is made, never before."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RunningReplica

from serve.routing.request_routers import BalancedRouter, PrefixRouter, ReservedReplica, StickyRouter
from serve.routing.running_replicas import metadata_of_running, slots_of_running


class Actor:
    """The replica's actor: answers a reservation when told to, and notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        self.reserve_slot = SimpleNamespace(remote=self._reserve)
        self.release_slot = SimpleNamespace(remote=self._release)

    def _reserve(self, _: Any, token: str) -> "asyncio.Future[tuple[bool, int]]":
        self.token = token
        self.calls.append("reserve")
        self.asked.set()
        return self.answer

    def _release(self, token: str) -> "asyncio.Future[tuple[bool, int]]":
        assert token == self.token
        self.calls.append("release")
        answer: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        answer.set_result((True, 0))
        return answer


@pytest.fixture
async def actor() -> Actor:
    return Actor()


@pytest.fixture
def replica(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> ReservedReplica:
    def made(self: Any, _: Any) -> None:
        self._actor_handle, self._replica_info = actor, SimpleNamespace(is_cross_language=False)

    monkeypatch.setattr(RunningReplica, "__init__", made)
    return ReservedReplica(None)


async def leave(replica: ReservedReplica, actor: Actor) -> None:
    """Go while the reservation is on its way."""
    asking = asyncio.create_task(replica.reserve_slot(None))
    await actor.asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert actor.calls == ["reserve"]


async def given_back(replica: ReservedReplica) -> None:
    await asyncio.gather(*replica._releases)
    assert not replica._releases


async def test_who_waits_gets_the_token(replica: ReservedReplica, actor: Actor) -> None:
    actor.answer.set_result((True, 3))
    token, queue = await replica.reserve_slot(None)
    assert (token, queue.accepted, queue.num_ongoing_requests) == (actor.token, True, 3)
    assert actor.calls == ["reserve"]


async def test_the_slot_of_one_who_left_is_released_once_it_is_reserved(replica: ReservedReplica, actor: Actor) -> None:
    await leave(replica, actor)
    actor.answer.set_result((True, 1))
    await given_back(replica)
    assert actor.calls == ["reserve", "release"]


async def test_a_refused_reservation_has_nothing_to_give_back(replica: ReservedReplica, actor: Actor) -> None:
    await leave(replica, actor)
    actor.answer.set_result((False, 8))
    await given_back(replica)
    assert actor.calls == ["reserve"]


async def test_a_replica_that_died_in_between_troubles_nobody(replica: ReservedReplica, actor: Actor) -> None:
    await leave(replica, actor)
    actor.answer.set_exception(ActorDiedError())
    await given_back(replica)


@pytest.mark.parametrize("router", [BalancedRouter, StickyRouter])
def test_both_routers_of_ray_use_it(router: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningReplica, "__init__", lambda self, info: None)
    assert isinstance(router.create_replica_wrapper(router.__new__(router), "info"), ReservedReplica)


class Running:
    """A replica as Ray hands it to a router."""

    multiplexed_model_ids: frozenset[str] = frozenset()
    node_id = "node"
    availability_zone = None

    def __init__(self, deployment: DeploymentID, name: str, slots: int) -> None:
        self.max_ongoing_requests = slots
        self.replica_id = ReplicaID(name, deployment)
        self.replica_metadata = {"facts": {"name": name}}

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


@pytest.mark.parametrize("name", ["BalancedRouter", "StickyRouter"])
async def test_the_process_knows_which_replicas_run_as_soon_as_rays_router_does(name: str) -> None:
    path = f"serve.routing.request_routers:{name}"
    router_class: Any = RequestRouterConfig(request_router_class=path).get_request_router_class()
    deployment = DeploymentID(name, "app")
    router = router_class(
        deployment_id=deployment,
        handle_source=DeploymentHandleSource.REPLICA,
        self_node_id="node",
        self_actor_id="actor",
        self_actor_handle=None,
    )
    router.initialize_state()
    assert metadata_of_running("app", name) == []
    assert slots_of_running("app", name) == 0
    first, second = Running(deployment, "first", 25), Running(deployment, "second", 30)
    router.update_replicas([first, second])
    assert metadata_of_running("app", name) == [{"facts": {"name": "first"}}, {"facts": {"name": "second"}}]
    assert slots_of_running("app", name) == 55
    router.on_replica_actor_died(first.replica_id)
    assert metadata_of_running("app", name) == [{"facts": {"name": "second"}}]
    assert slots_of_running("app", name) == 30
    assert metadata_of_running("another app", name) == []
    assert slots_of_running("another app", name) == sys.maxsize


async def test_a_prefix_router_tries_the_named_replica_first_and_then_the_balanced_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c = (
        SimpleNamespace(replica_metadata={"http_host": "h", "http_port": port, "http_key": ""}) for port in (1, 2, 3)
    )

    async def two_choices(self: Any, candidates: list[Any], pending: Any = None) -> list[list[Any]]:
        return [[a, b]]

    monkeypatch.setattr(PrefixRouter.__mro__[3], "choose_replicas", two_choices)
    router = PrefixRouter.__new__(PrefixRouter)

    def asking(named: str) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(session_id=named))

    assert await router.choose_replicas([a, b, c], asking("http://h:3")) == [[c], [a, b]]
    assert await router.choose_replicas([a, b, c], asking("")) == [[a, b]]
    assert await router.choose_replicas([a, b, c], asking("http://gone:1")) == [[a, b]]
    assert await router.choose_replicas([a, b, c], None) == [[a, b]]
