"""Sticky pools: a conversation stays with its replica, and leaves it only when it must."""

import asyncio
from typing import Any

import aiohttp
import pytest
from support.cluster import Cluster
from support.load import End, LoadResult, ask

pytestmark = pytest.mark.ray
SESSIONS = [f"conversation-{n}" for n in range(60)]


def turn(session: str, number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"{session}: begin"}]
    more = [{"role": "assistant", "content": "…"}, {"role": "user", "content": f"turn {number}"}]
    return {"model": "agent", "messages": said + more * number, "max_tokens": 10}


async def homes(cluster: Cluster, number: int, **header: str) -> dict[str, int]:
    """Which process answers a turn of each session."""
    tally = LoadResult()
    async with aiohttp.ClientSession() as http:
        asked = [ask(http, cluster.url, turn(session, number), tally, **header) for session in SESSIONS]
        found = await asyncio.gather(*asked)
    assert tally.ends == {End.COMPLETE: len(SESSIONS)}, tally
    return dict(zip(SESSIONS, found, strict=True))


async def test_each_conversation_stays_and_all_replicas_get_some(cluster: Cluster) -> None:
    first = await homes(cluster, 0)
    assert await homes(cluster, 1) == first
    assert len(set(first.values())) == 3


async def test_the_header_binds_what_has_nothing_in_common(cluster: Cluster) -> None:
    assert len(set((await homes(cluster, 0, **{"x-session-id": "one agent"})).values())) == 1


async def test_who_loses_its_replica_moves_and_the_others_stay(cluster: Cluster) -> None:
    before = await homes(cluster, 0)
    dead = before[SESSIONS[0]]
    (victim,) = (each for each in cluster.replicas("agent--p") if each.pid == dead)
    victim.kill()
    after = await homes(cluster, 1)
    assert dead not in after.values()
    assert {s: pid for s, pid in after.items() if before[s] != dead} == {
        s: pid for s, pid in before.items() if pid != dead
    }
    assert len({pid for s, pid in after.items() if before[s] == dead}) == 2, "all that moved went to one replica"
    await cluster.until_replicas("agent--p", 3)
