"""Rolling updates under load: nobody notices."""

import os

import pytest
from support.cluster import Cluster
from support.load import End, under_load
from support.pools import changed, hello

pytestmark = pytest.mark.ray
REQUESTS = int(os.environ.get("SPECGATE_UPDATE_REQUESTS", "300"))


async def test_new_engines_replace_old_ones_and_no_request_fails(cluster: Cluster) -> None:
    old, untouched = cluster.replicas("agent--p"), cluster.replicas("homes--near") + cluster.replicas("homes--far")

    async def update() -> None:
        await cluster.deploy(changed("agent", seed=1))

    tally = await under_load(cluster.url, lambda n: hello("agent", n), update, at_least=REQUESTS)
    assert set(tally.ends) == {End.COMPLETE}, tally
    new = cluster.replicas("agent--p")
    assert {each.pid for each in new}.isdisjoint(each.pid for each in old)
    assert set(tally.engines) == {each.pid for each in [*old, *new]}
    assert all(each.is_running() for each in untouched), "a pool that did not change was restarted"


async def test_new_gateways_replace_old_ones_and_no_request_fails(cluster: Cluster) -> None:
    old, untouched = cluster.replicas("Gateway"), cluster.replicas("agent--p")

    async def update() -> None:
        await cluster.deploy({**changed("agent", seed=1), "limits": {"retry_after_s": 3}})

    tally = await under_load(cluster.url, lambda n: hello("agent", n), update, at_least=REQUESTS)
    assert set(tally.ends) == {End.COMPLETE}, tally
    assert {each.pid for each in cluster.replicas("Gateway")}.isdisjoint(each.pid for each in old)
    assert all(each.is_running() for each in untouched), "an engine was restarted for the gateway's sake"
