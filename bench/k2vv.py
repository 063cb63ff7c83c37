"""`python -m bench.k2vv`: K2-Vendor-Verifier's schema accuracy at the client, before and behind the guard.

The published accuracies of open-source stacks and vendors lie between 87 and 99 %. Simulated engines break calls at
such rates; every arm gets the same requests, through the code of `specgate probe --format k2vv`.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.guard.traffic import request
from bench.leaks.prompts import prompts
from bench.result_rows import upsert
from lab.probe.k2vv import RequestSet, metrics
from lab.probe.plan import ProbePlan
from lab.probe.runner import run
from lab.probe.trial_log import TrialLog

RESULTS = Path(__file__).parent / "results" / "k2vv.json"
RATES = (0.01, 0.05, 0.13, 0.25, 0.5)  # of broken answers: the published range, and beyond
# Faults that the verifier counts; a call that vanishes, say, does not end in calls.
FAULTS = ("truncated_string", "wrong_name", "empty_arguments", "merged_calls", "double_brace")
MODES: dict[str, dict[str, Any]] = {  # of the guard, by the name in the table; `auto` asks quarantine
    "off": {"mode": "off"},
    "observe": {"mode": "observe"},
    "heal": {"mode": "heal"},
    "heal, live": {"mode": "heal", "arguments": "live"},
    "heal, auto": {"mode": "heal", "arguments": "auto"},
}


def requests(count: int, prompt: str) -> dict[int, dict[str, Any]]:
    """Returns requests that must be answered with calls, numbered as the lines of a request set are.

    Args:
        count: How many.
        prompt: `plain`, or a name of `bench.leaks.prompts`, whose messages come before the request's own.
    """
    before = [] if prompt == "plain" else list(prompts("kimi_k2")[prompt]["messages"])
    bodies = {number: request("m", number, stream=False) for number in range(1, count + 1)}
    return {number: {**body, "messages": [*before, *body["messages"]]} for number, body in bodies.items()}


async def measure(url: str, bodies: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Returns the verifier's counts over streamed and whole answers, and how many requests got which error."""
    plan = ProbePlan(
        url=url, model="m", cells=tuple(RequestSet("bench", bodies, stream) for stream in (False, True)), trials=1,
        temperature=None, max_tokens=None, speculative=None, concurrency=16, timeout_s=60, api_key_env=None, tolerate=0,
    )  # fmt: skip
    log = TrialLog(None, plan.settings)
    await run(plan, log, lambda: None)
    rows = metrics(log.trials, None).values()
    calls = sum(row["count_finish_reason_tool_calls"] for row in rows)
    valid = sum(row["count_successful_tool_call"] for row in rows)
    errors = Counter(trial["detail"] for trial in log.trials if trial["outcome"] == "error")
    return {"requests": len(log.trials), "ended_in_calls": calls, "valid": valid, "errors": dict(errors)}


def compare(rate: float, count: int, prompt: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode of the guard at one rate of broken answers, as soon as it is measured."""
    bodies = requests(count, prompt)
    faulty = replace(engine(), faults={name: rate / len(FAULTS) for name in FAULTS})
    with engines({"fast": faulty, "safe": engine(speculative=False)}) as urls:
        for mode, guard in MODES.items():
            quarantine = {"enabled": guard.get("arguments") == "auto"}
            with gateway(gateway_config(urls["fast"], urls["safe"], quarantine=quarantine, **guard)) as (url, _):
                found = asyncio.run(measure(url, bodies))
            accuracy = found["valid"] / found["ended_in_calls"]
            yield {"fault_rate": rate, "guard": mode, "prompt": prompt, **found, "schema_accuracy": round(accuracy, 4)}


def main() -> None:
    """Measure each rate, print a line per mode, and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=800, help="each is sent streamed and whole")
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="of broken answers, comma-separated")
    parser.add_argument(
        "--prompt", default="plain", help="or one that quotes markup, by its name in bench.leaks.prompts"
    )
    options = parser.parse_args()
    for rate in map(float, options.rates.split(",")):
        for row in compare(rate, options.requests, options.prompt):
            print(json.dumps(row), flush=True)
            upsert(RESULTS, row, ("fault_rate", "guard", "prompt"))


if __name__ == "__main__":
    main()
