"""A reservation that nobody waits for any more: its slot is released after it is made, never before."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import RunningReplica

from serve.routing.ray_pool import hint, metadata_of_running, slots_of_running
from serve.routing.request_routers import BalancedRouter, ReservedReplica, StickyRouter


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

    def __init__(self, deployment: DeploymentID, name: str, slots: int, busy: int = 0) -> None:
        self.max_ongoing_requests = slots
        self.replica_id = ReplicaID(name, deployment)
        self.replica_metadata = {"facts": {"name": name}, "http_host": name, "http_port": 1}
        self.busy = busy

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.busy


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
    assert metadata_of_running("app", name) == [first.replica_metadata, second.replica_metadata]
    assert slots_of_running("app", name) == 55
    router.on_replica_actor_died(first.replica_id)
    assert metadata_of_running("app", name) == [second.replica_metadata]
    assert slots_of_running("app", name) == 30
    assert metadata_of_running("another app", name) == []
    assert slots_of_running("another app", name) == sys.maxsize


def asking(session_id: str) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(session_id=session_id, internal_request_id="id"))


A, B, C = (
    SimpleNamespace(replica_metadata={"http_host": "h", "http_port": port, "http_key": ""}) for port in (1, 2, 3)
)


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> BalancedRouter:
    """A balanced one, whose two choices are A and B."""

    async def two_choices(self: Any, candidates: list[Any], pending: Any = None) -> list[list[Any]]:
        return [[A, B]]

    monkeypatch.setattr(BalancedRouter.__mro__[2], "choose_replicas", two_choices)
    return BalancedRouter.__new__(BalancedRouter)


@pytest.mark.parametrize(
    ("wanted", "avoid", "ranks"),
    [
        ("http://h:3", [], [[C], [A, B]]),
        ("", [], [[A, B]]),
        ("http://gone:1", [], [[A, B]]),
        ("", ["http://h:1"], [[B], [B, C]]),
        ("", ["http://h:1", "http://h:2"], [[C]]),
        ("http://h:3", ["http://h:1"], [[C], [B], [B, C]]),
        ("http://h:1", ["http://h:1"], [[B], [B, C]]),
        ("", ["http://h:1", "http://h:2", "http://h:3"], [[A, B, C]]),
        ("", ["http://gone:1"], [[A, B], [A, B, C]]),
    ],
)
async def test_a_router_tries_the_named_replica_first_and_none_that_is_to_be_avoided_while_there_are_others(
    router: Any, wanted: str, avoid: list[str], ranks: list[list[Any]]
) -> None:
    assert await router.choose_replicas([A, B, C], asking(hint(wanted, avoid))) == ranks


async def test_a_router_without_a_request_has_no_wishes(router: Any) -> None:
    assert await router.choose_replicas([A, B, C], None) == [[A, B]]


def router_of(name: str, replicas: dict[str, int]) -> Any:
    """One of our routers as Ray makes it, with replicas by name and how busy each is."""
    path = f"serve.routing.request_routers:{name}"
    router_class: Any = RequestRouterConfig(request_router_class=path).get_request_router_class()
    deployment = DeploymentID(name, "app")
    router = router_class(
        deployment_id=deployment, handle_source=DeploymentHandleSource.REPLICA,
        self_node_id="node", self_actor_id="actor", self_actor_handle=None,
    )  # fmt: skip
    router.initialize_state()
    router.update_replicas([Running(deployment, each, 8, busy) for each, busy in replicas.items()])
    return router


@pytest.mark.parametrize("name", ["BalancedRouter", "StickyRouter"])
async def test_each_of_many_requests_at_a_time_gets_a_replica_that_it_does_not_avoid(name: str) -> None:
    router = router_of(name, {"a": 0, "b": 5, "c": 5})  # the first, which fails them at once, seems the least busy
    hints = [frozenset({f"http://{each}:1"}) for each in "abc"] * 10

    async def chosen(number: int, avoid: frozenset[str]) -> str:
        metadata = RequestMetadata(request_id=str(number), internal_request_id=str(number), session_id=hint("", avoid))
        replica = await router._choose_replica_for_request(PendingRequest(args=[], kwargs={}, metadata=metadata))
        return f"http://{replica.replica_id.unique_id}:1"

    found = await asyncio.gather(*(chosen(number, avoid) for number, avoid in enumerate(hints)))
    assert [url for url, avoid in zip(found, hints, strict=True) if url in avoid] == []


async def test_the_place_of_a_session_is_the_same_with_and_without_replicas_to_avoid() -> None:
    router = router_of("StickyRouter", dict.fromkeys("abcdef", 0))
    replicas = list(router.curr_replicas.values())

    async def first(session_id: str) -> str:
        ranks = await router.choose_replicas(replicas, asking_on_the_ring(session_id))
        return str(ranks[0][0].replica_id.unique_id)

    places = {session: await first(session) for session in map(str, range(50))}
    assert len({*places.values()}) == 6
    for session, place in places.items():
        others = [f"http://{each}:1" for each in "abcdef" if each != place]
        assert await first(hint(session, others[:2])) == place
        assert await first(hint(session, [f"http://{place}:1"])) != place


async def test_requests_without_a_session_go_everywhere_on_the_ring_also_when_one_is_to_be_avoided() -> None:
    router = router_of("StickyRouter", dict.fromkeys("abcdef", 0))
    replicas = list(router.curr_replicas.values())
    found = set()
    for number in range(50):
        asked = asking_on_the_ring(hint("", ["http://a:1"]))
        asked.metadata.internal_request_id = str(number)
        ranks = await router.choose_replicas(replicas, asked)
        found.add(ranks[0][0].replica_id.unique_id)
    assert found == set("bcdef")


def asking_on_the_ring(session_id: str) -> Any:
    return SimpleNamespace(metadata=asking(session_id).metadata, routing_context=SimpleNamespace(should_backoff=False))
