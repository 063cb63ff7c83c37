"""Compares vLLM's own server with one gateway replica in front of it: `python -m bench.real_engine`.

The same requests go in turn to the engine and through the gateway to the same engine. Reports the added time to the
first byte without load, the ratio of throughputs under load, and the CPU per answer by process.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from bench.gateway import sides, traffic
from bench.peers import Running, launched, stop_when_told
from bench.real_engine import measure
from bench.real_engine.engine import KEY, SIZES, engine
from bench.result_rows import upsert

RESULTS = Path(__file__).parents[1] / "results" / "real_engine.json"
_KEY_ENV = "SPECGATE_BENCH_KEY"
_CONFIG = f"""
models:
  {{model}}:
    family: qwen3-coder
    grammar: qwen3_coder
    pools:
      standard:
        kind: remote
        url: "{{upstream}}"
        api_key_env: {_KEY_ENV}
        facts: {{{{ engine: vllm, engine_version: 0.32.0, method: none }}}}
"""


def measured(behind: Running, front: Running, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every cell, one row each."""
    for name in given.answers.split(","):
        streamed = name == "stream"
        row = {"size": given.size, "answers": name, "cores": len(os.sched_getaffinity(0)), "tokens": measure.TOKENS}
        yield row | {"concurrency": 1, **measure.one_at_a_time(behind, front, given.pairs, streamed)}
        for concurrency in map(int, given.concurrency.split(",")):
            made = measure.under_load(behind, front, concurrency, streamed, given.rounds, given.seconds)
            yield row | uvloop.run(made)


def main() -> None:
    """Start both, measure, print, save."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", choices=SIZES, default="tiny", help="of the model")
    options.add_argument("--answers", default="stream,whole", help="of: stream, whole")
    options.add_argument("--concurrency", default="4,16", help="answers at a time, with commas")
    options.add_argument("--pairs", type=int, default=60, help="pairs of requests one at a time")
    options.add_argument("--rounds", type=int, default=10, help="pairs of turns under load")
    options.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    given = options.parse_args()
    stop_when_told()
    gateway = replace(sides.REPLICA, config=_CONFIG, environment={_KEY_ENV: KEY})
    below = engine(given.size)
    with launched(below, "", traffic.MODEL) as behind, launched(gateway, behind.url, traffic.MODEL) as front:
        for row in measured(behind, front, given):
            print(json.dumps(row), flush=True)
            upsert(RESULTS, row, ("size", "answers", "concurrency"))


if __name__ == "__main__":
    main()
