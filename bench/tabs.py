"""What open tabs of the dashboard cost the admin API: `python -m bench.tabs`.

The admin API is a process of its own, as in a cluster; another one holds a gateway replica with simulated engines under
a little load, so that the board changes all the time. Clients send what the page sends, when it sends it. Shares are
CPU of the admin API's process, of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from statistics import mean, median
from typing import Any

import aiohttp
import psutil
import uvloop

from lab.sim import SimSettings, build_sim_app
from serve.access.principal import everybody
from serve.admin.app import AdminRoutes
from serve.admin.audit import AuditLog
from serve.admin.board import board
from serve.admin.history import History
from serve.admin.replicas import GatewayReplicas, Watch
from serve.errors import encode_json
from serve.gateway.ingress import GatewayReplica
from serve.http1.listener import Listener
from serve.http1.server import protocol_factory
from serve.routing.pool import Endpoint

_PERIOD_S = 2.0  # of the page
_AUDIT = "/admin/v1/audit?limit=20"
_MAX_BODY_BYTES = 2**20
_SETTLES_S = 20.0  # the admin API forgets that somebody looked, and a first period is over
_LARGE = 50  # pools
_MODEL = "m"


async def gateway(reply: Connection) -> None:
    """Runs a gateway replica with two pools; tells where its data port and its operators' routes are."""
    pools = {}
    for name, tokens in (("speculative", 3), ("standard", 0)):
        engine = Listener("127.0.0.1")
        await engine.start(build_sim_app(SimSettings(model=_MODEL, num_speculative_tokens=tokens)))
        pools[name] = {"kind": "remote", "url": engine.url, "facts": {"engine": "sim", "method": "none"}}
    model = {"family": "sim", "grammar": "kimi_k2", "pools": pools}
    replica = GatewayReplica({"models": {_MODEL: model}, "rate_limits": {"enabled": True}}, [])
    data, operators = Listener("127.0.0.1"), Listener("127.0.0.1")
    await data.start(replica.app(), protocol_factory(replica.hot))
    await operators.start(replica.operators_app(), protocol_factory({}))
    reply.send((data.url, operators.url))
    await asyncio.Event().wait()


async def admin_api(reply: Connection, operators: str) -> None:
    """Runs an admin API before a gateway replica; tells where."""
    known = GatewayReplicas(lambda: 0.0)
    known.announce("one", Endpoint(operators, None))
    watch = Watch(known)
    listener = Listener("127.0.0.1")
    api = AdminRoutes(known, watch, AuditLog(None), everybody, _MAX_BODY_BYTES)
    await listener.start(api.app(), protocol_factory({}))
    reply.send(listener.url)
    await watch.run()


async def tab(session: aiohttp.ClientSession, url: str, begins_s: float) -> None:
    """Asks as the page does, for ever.

    Args:
        session: To ask with.
        url: The admin API's.
        begins_s: After so many seconds: tabs were not opened all at once.
    """
    await asyncio.sleep(begins_s)
    etag = audited = ""
    while True:
        headers = {"if-none-match": etag} if etag else {}
        async with session.get(f"{url}/admin/v1/board", headers=headers) as response:
            await response.read()
            etag, last = response.headers["etag"], response.headers["x-specgate-audit"]
        if last != audited:
            async with session.get(url + _AUDIT) as response:
                await response.read()
            audited = last
        await asyncio.sleep(_PERIOD_S)


async def load(session: aiohttp.ClientSession, url: str) -> None:
    """Sends a request a second, for ever."""
    body = {"model": _MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}
    while True:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
        await asyncio.sleep(1)


async def share(process: psutil.Process, seconds: float) -> float:
    """Returns the share of a core that a process uses."""
    began_s, used = time.monotonic(), process.cpu_times()
    await asyncio.sleep(seconds)
    now = process.cpu_times()
    return (now.user + now.system - used.user - used.system) / (time.monotonic() - began_s)


async def measure(data: str, url: str, pid: int, tabs: int, seconds: float, rounds: int) -> None:
    """Prints the admin API's share of a core with no tab, with one and with many, each in turn.

    Args:
        data: The gateway's base URL.
        url: The admin API's.
        pid: Of the admin API.
        tabs: How many are many.
        seconds: Of each.
        rounds: Of all three.
    """
    found: dict[int, list[float]] = {0: [], 1: [], tabs: []}
    process = psutil.Process(pid)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        sending = asyncio.create_task(load(session, data))
        for _ in range(rounds):
            for count, shares in found.items():
                open_ = [asyncio.create_task(tab(session, url, _PERIOD_S * each / count)) for each in range(count)]
                await asyncio.sleep(_SETTLES_S)
                shares.append(await share(process, seconds))
                for each in open_:
                    each.cancel()
                await asyncio.gather(*open_, return_exceptions=True)
        sending.cancel()
    for count, shares in found.items():
        print(f"{count} tabs: {mean(shares):.2%} of a core ({', '.join(f'{each:.2%}' for each in shares)})", flush=True)


def snapshot(pools: int) -> dict[str, Any]:
    """Returns what a gateway replica with so many pools might see, each with four cells."""
    row = {"kind": "remote", "may_sleep": False, "slots": 256, "held": 12, "waiting": 3, "engines": []}
    cell = {
        "speculative": True, "status": "open", "held": False, "by": "", "why": "", "since_s": 0.0, "answers": 200,
        "clean_rate": 0.98, "bad_rate_at_least": 0.01, "bad_rate_at_most": 0.05, "reference": False,
    }  # fmt: skip
    kinds = ("tools_auto", "tools_forced", "json_schema", "tools_auto+strict")
    names = [{"model": f"a-model-with-a-long-name-{number}", "pool": "speculative"} for number in range(pools)]
    bounds = ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf")
    samples: list[Any] = [["specgate_requests_total", {**name, "status": "200"}, 1000.0] for name in names]
    for name in names:
        samples += [["specgate_time_to_first_token_seconds_bucket", {**name, "le": le}, 10.0] for le in bounds]
        samples += [["specgate_acceptance_length", {**name, "request_class": kind}, 2.5] for kind in kinds]
    return {
        "policy": {"digest": "0123456789abcdef", "refused_update": None},
        "pools": [{**name, **row} for name in names],
        "cells": [{**cell, **name, "request_class": kind} for name in names for kind in kinds],
        "changes": [], "reruns": [], "rerun_content": False, "tenants": [], "queue": {}, "samples": samples,
    }  # fmt: skip


def large_board() -> None:
    """Prints the size of a board of 50 pools after half an hour, and what it takes to make one."""
    history = History()
    snapshots = {"one": snapshot(_LARGE)}
    for number in range(360):
        history.add(1.7e9 + 5 * number, snapshots)
    spent: list[float] = []
    for _ in range(20):
        began_s = time.thread_time()
        made = encode_json(board(snapshots, (), {}, history))
        spent.append(time.thread_time() - began_s)
    print(f"{_LARGE} pools: {len(made) / 1000:.0f} kB, {median(spent) * 1000:.1f} ms")


def _run(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    uvloop.run(main(*arguments))  # as in a Ray actor


@contextlib.contextmanager
def child(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Iterator[tuple[Any, int]]:
    """Runs a coroutine function in a process; yields what it tells, and the process's id."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(main, theirs, *arguments), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield ours.recv(), process.pid
    finally:
        process.terminate()
        process.join()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tabs", type=int, default=20)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    large_board()
    with child(gateway) as ((data, operators), _), child(admin_api, operators) as (url, pid):
        asyncio.run(measure(data, url, pid, given.tabs, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
