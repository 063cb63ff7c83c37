"""Cost of a decision: features and decide() compared with json.loads of the same body: `python -m bench.policy`.

Figures are medians over rounds in which the contenders take turns, so a busy machine slows all of them alike.
"""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

import policies
from policies import (
    Decision,
    PolicySettings,
    RequestFeatures,
    choose,
    compile_policy,
    decide,
    facts_from_engine_args,
    load_advisories,
)
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig, RequestsConfig
from serve.load.live_load import LiveLoad
from serve.request.body_reader import RequestReader
from serve.request.completion import parse
from serve.request.features import features_of
from serve.request.patch import BodyPatch

ROUNDS = 300
CALLS = 20
BODY_BYTES = 100_000
TOOLS = 20
DECIDE_BUDGET_US = 5.0
LOAD_BUDGET_US = 3.0
TOGETHER_BUDGET_US = 60.0


def main() -> None:
    """Measure and print the table."""
    body = _body()
    facts = [
        facts_from_engine_args("m", f"{method}-{n}", "kimi-k2", "2.6", _args(method), {"opt_out": method is not None})
        for method, n in itertools.product(("eagle3", "mtp", None), range(2))
    ]
    advisories = load_advisories(Path(policies.__file__).parent / "advisories")
    policy = compile_policy(facts, advisories, PolicySettings())
    features = features_of(parse(body), {})

    def cold() -> None:
        policy.memory.clear()
        decide(policy, features, None)

    load, busy = _loaded()
    reader = RequestReader(RequestsConfig())
    patch = BodyPatch()
    patch.drop(("enable_speculative",))
    figures = _medians(
        {
            "json.loads (yardstick)": lambda: json.loads(body),
            "read": lambda: reader.read(body),
            "features": lambda: features_of(parse(body), {}),
            "decide": lambda: decide(policy, features, None),
            "decide, class not seen before": cold,
            "load: order two candidates": lambda: choose(busy, load.order(busy, features, len(body))),
            "features + decide": lambda: decide(policy, features_of(parse(body), {}), None),
            "patch": lambda: patch.apply(body),
        }
    )
    _print(figures, len(body), len(facts), len(advisories))


def _loaded() -> tuple[LiveLoad, Decision]:
    """Returns the load of a busy speculative and an idle standard pool, and a decision between the two."""
    remote = {"kind": "remote", "url": "http://unused", "facts": {"method": "none"}}
    facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "eagle3", "num_speculative_tokens": 3}
    pools = {"speculative": {**remote, "facts": facts, "proven": ["any"]}, "standard": remote}
    model = {"family": "kimi-k2", "grammar": "kimi_k2", "pools": pools}
    config = GatewayConfig.parse({"models": {"m": model}, "policy": {"load": "route"}})
    policy = compile_for(config)
    load = LiveLoad(config, policy)
    decision = decide(policy, RequestFeatures("m", stream=True), None)
    for _ in range(20):
        load.begin(decision, RequestFeatures("m"), decision.candidates[0], 1000)
    return load, decision


def _body() -> bytes:
    """Returns a coding agent's request, with a long history and many tools."""
    properties = {
        f"p{n}": {"type": "string", "description": "What it is for, in a sentence or two. " * 2} for n in range(8)
    }
    tools = [
        {"type": "function", "function": {
            "name": f"tool_{n}", "description": "Does something useful. " * 10,
            "parameters": {"type": "object", "properties": properties, "required": ["p0"]},
        }}
        for n in range(TOOLS)
    ]  # fmt: skip
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful engineer. " * 40}]
    body = {"model": "m", "stream": True, "tools": tools, "tool_choice": "auto", "messages": messages}
    turn = 'def f(x):\n    return x + 1  # "quoted"\n' * 40
    while len(json.dumps(body)) < BODY_BYTES:
        missing = BODY_BYTES - len(json.dumps(body))
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": turn[: max(missing - 60, 1)]})
    return json.dumps(body).encode()


def _args(method: str | None) -> dict[str, Any]:
    args = {"tool-call-parser": "kimi_k2", "reasoning-parser": "kimi_k2"}
    spec = {"method": method, "model": "kimi-k2.6-eagle3", "num_speculative_tokens": 3}
    return {**args, "speculative-config": spec} if method else args


def _medians(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns microseconds per call."""
    us: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            us[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: median(times) for name, times in us.items()}


def _print(figures: dict[str, float], size: int, pools: int, advisories: int) -> None:
    table = Table(title=f"body of {size:,} bytes, {TOOLS} tools; {pools} pools, {advisories} advisories")
    for heading in ("", "p50, µs", "of json.loads", "budget, µs"):
        table.add_column(heading, justify="right" if heading else "left")
    budgets = {
        "decide": DECIDE_BUDGET_US,
        "load: order two candidates": LOAD_BUDGET_US,
        "features + decide": TOGETHER_BUDGET_US,
    }
    yardstick = figures["json.loads (yardstick)"]
    for name, us in figures.items():
        budget = f"{budgets[name]:g} {'met' if us < budgets[name] else 'MISSED'}" if name in budgets else ""
        table.add_row(name, f"{us:.2f}", f"{us / yardstick:.1%}", budget)
    Console().print(table)


if __name__ == "__main__":
    main()
