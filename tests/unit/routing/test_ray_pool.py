"""The wait for a replica of a pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import DeploymentUnavailableError

from serve.errors import PoolUnavailableError
from serve.routing import ray_pool
from serve.routing.pool import NOWHERE, Affinity, Endpoint
from serve.routing.ray_pool import RayPool, read_hint
from serve.routing.waiting_room import WaitingTerms

FOR_EVER_S = 1e6


class Handle:
    """A pool as Ray Serve's handle shows it: `capacity` is what `choose_replica` waits for."""

    app_name, deployment_name = "pool-test", "pool"

    is_initialized = True

    def __init__(self) -> None:
        self.curr_replicas: dict[str, Any] = {}
        ray_pool.register_router(self.app_name, self.deployment_name, self)
        self.capacity = asyncio.Event()
        self.runs(2)
        self.error: Exception | None = None

    def runs(self, *slots: int) -> None:
        """Sets the slots of each running replica."""
        self.curr_replicas = {
            str(number): SimpleNamespace(max_ongoing_requests=each, replica_metadata={})
            for number, each in enumerate(slots)
        }

    def tell(self, *facts: dict[str, Any]) -> None:
        """Sets the facts of each running replica."""
        self.curr_replicas = {
            str(number): SimpleNamespace(max_ongoing_requests=2, replica_metadata={"facts": each})
            for number, each in enumerate(facts)
        }

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        await self.capacity.wait()
        metadata = {"http_host": "127.0.0.1", "http_port": 1, "http_key": "k"}
        yield SimpleNamespace(replica_metadata=metadata, _slot_token="token")


def pool_of(handle: Any, queue_timeout_s: float = FOR_EVER_S) -> RayPool:
    return RayPool("m/p", handle, WaitingTerms(None, queue_timeout_s))


async def test_a_pool_is_full_with_as_many_requests_as_its_replicas_take() -> None:
    handle = Handle()
    handle.capacity.set()
    pool = pool_of(handle)
    async with pool.reserve():
        assert not pool.full
        async with pool.reserve():
            assert pool.full
            handle.runs(2, 1)
            assert not pool.full
    handle.runs(2)
    assert not pool.full


async def test_a_pool_that_never_had_a_slot_is_not_full_so_that_a_request_wakes_it() -> None:
    handle = Handle()
    handle.runs()
    pool = pool_of(handle)
    assert not pool.full
    handle.capacity.set()
    async with pool.reserve():
        pass
    assert pool.full, "its replicas are gone, and another pool may have one"


async def test_the_number_of_replicas_is_known_before_the_first_request() -> None:
    handle = Handle()
    handle.runs(2, 2, 2)
    assert pool_of(handle).replicas == 3


OLD = {"engine": "vllm", "engine_version": "0.31.0", "method": None, "hybrid": False, "max_model_len": 8192}
NEW = {**OLD, "engine_version": "0.32.0", "max_model_len": 4096}


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ([NEW, NEW], NEW),
        ([OLD, NEW], {**NEW, "engine_version": None}),
        ([NEW, OLD, NEW], {**NEW, "engine_version": None}),
        ([NEW, {**NEW, "method": "eagle3"}], {**NEW, "method": "unknown"}),
    ],
)
async def test_in_a_rollout_a_pools_facts_are_those_of_all_its_replicas(
    told: list[dict[str, Any]], known: dict[str, Any]
) -> None:
    handle = Handle()
    handle.tell(*told)
    assert await pool_of(handle).facts() == known


async def test_a_request_that_waits_counts_as_one_that_is_served() -> None:
    handle = Handle()
    handle.capacity.set()
    pool = pool_of(handle)
    async with pool.reserve():
        handle.capacity.clear()
        waiting = asyncio.create_task(pool.reserve().__aenter__())
        await asyncio.sleep(0)
        assert pool.full
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not pool.full


async def test_a_pool_with_an_idle_slot_is_ready() -> None:
    handle = Handle()
    handle.capacity.set()
    pool = pool_of(handle)
    assert not pool.ready
    async with pool.reserve():
        pass
    assert pool.ready
    await pool.close()


async def test_a_pool_that_had_no_slot_gets_a_shorter_head_start_until_it_has_one() -> None:
    handle = Handle()
    handle.error = DeploymentUnavailableError("id")
    pool = pool_of(handle)
    usual_s = pool.head_start_s
    with pytest.raises(PoolUnavailableError):
        async with pool.reserve():
            pass
    assert 0 < pool.head_start_s < usual_s
    handle.error = None
    handle.capacity.set()
    async with pool.reserve():
        assert pool.head_start_s == usual_s


async def test_who_can_go_nowhere_else_waits_for_capacity() -> None:
    handle = Handle()
    pool = pool_of(handle)
    asyncio.get_running_loop().call_later(0.05, handle.capacity.set)
    async with pool.reserve() as endpoint:
        assert endpoint.url == "http://127.0.0.1:1"


async def test_a_wait_in_vain_ends_with_an_error_that_says_when_to_come_back() -> None:
    with pytest.raises(PoolUnavailableError, match="m/p") as raised:
        async with pool_of(Handle(), queue_timeout_s=0.01).reserve():
            pass
    assert raised.value.retry_after_s == 2.0


class TwoReplicas(Handle):
    """A pool with two replicas, which serves at the one that is named."""

    def __init__(self) -> None:
        super().__init__()
        self.curr_replicas = {
            str(port): SimpleNamespace(max_ongoing_requests=4, replica_metadata=self.metadata(port)) for port in (1, 2)
        }
        self.named: list[str] = []

    @staticmethod
    def metadata(port: int) -> dict[str, Any]:
        return {"http_host": "127.0.0.1", "http_port": port, "http_key": "k"}

    def options(self, session_id: str) -> "TwoReplicas":
        self.named.append(session_id)
        return self

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[Any]:
        port = int(self.named[-1].rsplit(":", 1)[1])
        yield SimpleNamespace(replica_metadata=self.metadata(port), _slot_token="token")


async def test_prompts_with_one_beginning_go_to_one_replica_and_reuse_its_slot() -> None:
    handle = TwoReplicas()
    pool = RayPool("m/p", handle, WaitingTerms(None, FOR_EVER_S), "prefix")  # type: ignore[arg-type]
    one, other = Affinity(str, lambda: (1, 2, 3)), Affinity(str, lambda: (7, 8, 9))
    async with pool.reserve(one) as first:
        pass
    async with pool.reserve(other) as second:
        pass
    async with pool.reserve(one) as again, pool.reserve(other) as too:
        pass
    assert first.url != second.url
    assert (again, too) == (first, second)  # the very same slots
    await pool.close()


async def test_a_replica_tells_how_much_of_its_prompts_it_keeps() -> None:
    handle = TwoReplicas()
    for replica in handle.curr_replicas.values():
        replica.replica_metadata["kept_tokens"] = 1000
    pool = RayPool("m/p", handle, WaitingTerms(None, FOR_EVER_S), "prefix")  # type: ignore[arg-type]
    first, second, third = (Affinity(str, lambda name=name: tuple((name, at) for at in range(9))) for name in "abc")
    urls = []
    for prompt in (first, second, third, first):
        async with pool.reserve(prompt) as endpoint:
            urls.append(endpoint.url)
    assert urls[0] != urls[1]
    assert urls[3] == urls[2]  # the first prompt's replica was sent the third, and keeps no more than one
    await pool.close()


@pytest.mark.parametrize("routing", ["balanced", "sticky", "prefix"])
async def test_requests_avoid_a_replica_that_did_not_answer_and_each_the_one_that_has_failed_it(routing: str) -> None:
    handle = TwoReplicas()
    pool = RayPool("m/p", handle, WaitingTerms(None, FOR_EVER_S), routing)  # type: ignore[arg-type]
    one, other = (Endpoint(f"http://127.0.0.1:{port}", "k") for port in (1, 2))

    def hints(avoid: frozenset[str] = NOWHERE) -> tuple[str, frozenset[str]]:
        handle.named = [""]
        pool.reserve(Affinity(lambda: "session", lambda: (1, 2), avoid))
        return read_hint(handle.named[-1])

    wanted, avoid = hints(frozenset({other.url}))
    assert avoid == {other.url}
    assert wanted == {"balanced": "", "sticky": "session", "prefix": one.url}[routing]
    assert hints()[1] == frozenset()
    pool.forget(one)
    wanted, avoid = hints()
    assert avoid == {one.url}
    assert wanted == {"balanced": "", "sticky": "session", "prefix": other.url}[routing]
    assert hints(frozenset({other.url}))[1] == {one.url, other.url}
