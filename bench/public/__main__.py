"""`python -m bench.public`: public suites against any OpenAI URL, or through this gateway over engines that it starts.

Without `--arm`, an engine that copies what it is told is played alone and behind the gateway, clean and with faults in
a share of its answers; with `--real`, vLLM with a tiny model and a drafter, on the CPU, which is hardly ever right, but
need not break what it writes; with `--arm NAME=URL`, given once or more often, whatever is there. Each answer is one
line of `--out`. Suites: `kvv` (schemas of Kimi-Vendor-Verifier), `maskbench`, `bfcl`, `multi_turn` and `formats` (if
`bfcl-eval` is installed, or `--bfcl DIR`), `tau2` (`--tau2 DIR`, the folder of its domains), `k2vv` (`--k2vv FILE`, a
request set of K2-Vendor-Verifier).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import httpx
from openai import OpenAIError
from rich.console import Console
from rich.table import Table

from bench.gateway.traffic import MODEL
from bench.guard.correctness import OFF
from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.peers import launched
from bench.public import bfcl
from bench.public.arms import VERDICTS, Row, play
from bench.public.picture import picture
from bench.public.suites import SUITES, PublicCase
from bench.schemas import MASKBENCH, SHARED
from lab.probe.plan import ProbePlan
from lab.probe.runner import client_of
from serve.errors import ConfigError

ROOT = Path(__file__).parents[2]
_OF_BFCL = ("multi_turn", "formats")  # suites that lie in BFCL's folder
_KEY_ENV = "SPECGATE_BENCH_KEY"
_PROVEN = ["tools_auto", "tools_forced", "json_object", "json_schema"]  # so that the drafter gets them
RESULTS = ROOT / "bench" / "results" / "public.json"


def chosen(folders: Mapping[str, Path | None], wanted: Sequence[str], most: int) -> list[PublicCase]:
    """Returns the cases of the suites that are here, at most so many of each, spread over all of it.

    Raises:
        ConfigError: What is there is something else.
    """
    cases: list[PublicCase] = []
    for name in wanted:
        folder = folders[name]
        if folder is not None and folder.exists():
            try:
                own = list(SUITES[name](folder))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{folder} does not hold the suite {name}: {error!r}") from error
            cases += islice(own[:: max(1, len(own) // most)], most)
    return cases


@contextmanager
def simulated(rate: float) -> Iterator[dict[str, str]]:
    """Serves the four arms: an engine alone and behind the gateway, clean and with a share of faults."""
    settings = {"clean": engine(), "faulty": engine(rate), "safe": engine(speculative=False)}
    with ExitStack() as stack:
        urls = stack.enter_context(engines({name: replace(each, max_calls=1) for name, each in settings.items()}))
        arms: dict[str, str] = {}
        for name in ("clean", "faulty"):
            config = gateway_config(urls[name], urls["safe"], "heal", OFF)
            arms[f"engine, {name}"] = urls[name]
            arms[f"gateway, {name}"] = stack.enter_context(gateway(config))[0]
        yield arms


@contextmanager
def real() -> Iterator[dict[str, str]]:
    """Serves two arms: vLLM with a drafter alone, and behind the gateway, with another one as the standard pool."""
    from bench.real_engine.engine import KEY, engine

    os.environ[_KEY_ENV] = KEY
    with ExitStack() as stack:
        urls = {
            pool: stack.enter_context(launched(engine("tiny", pool), "", MODEL)).url
            for pool in ("speculative", "standard")
        }
        facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}
        remote = {"kind": "remote", "api_key_env": _KEY_ENV}
        drafted = {"facts": facts | {"method": "draft_model"}, "proven": _PROVEN, "url": urls["speculative"]}
        pools = {"speculative": remote | drafted, "standard": remote | {"facts": facts, "url": urls["standard"]}}
        model = {"family": "qwen3-coder", "grammar": "qwen3_coder", "guard": {"mode": "heal"}, "pools": pools}
        front = stack.enter_context(gateway({"models": {MODEL: model}, "quarantine": dict(OFF)}))[0]
        yield {"engine, vLLM": urls["speculative"], "gateway, vLLM": front}


def table(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Returns a line for each suite and arm."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        counts.setdefault((row.suite, row.arm), Counter())[row.verdict] += 1
    return [
        {"suite": suite, "arm": arm, "cases": found.total(), **{verdict: found[verdict] for verdict in VERDICTS}}
        for (suite, arm), found in counts.items()
    ]


async def only_model(plan: ProbePlan) -> str:
    """Returns the model that an endpoint has.

    Args:
        plan: How to reach it.

    Raises:
        ConfigError: It does not say, or has several.
    """
    try:
        async with client_of(plan, plan.base_url) as client:
            names = [model.id async for model in client.models.list()]
    except (OpenAIError, httpx.HTTPError) as error:
        raise ConfigError(f"{plan.base_url}/models does not answer: {error}; is it an OpenAI endpoint?") from error
    if len(names) != 1:
        raise ConfigError(f"{plan.url} has the models {', '.join(names) or '(none)'}; name one with --model")
    return names[0]


def _played(arms: Mapping[str, str], cases: Sequence[PublicCase], options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for arm, url in arms.items():
        plan = ProbePlan(
            url=url, model=options.model or "", cells=(), trials=1, temperature=0.0, max_tokens=options.max_tokens,
            speculative=None, concurrency=options.concurrency, timeout_s=options.timeout_s,
            api_key_env=options.api_key_env, tolerate=0,
        )  # fmt: skip
        if not plan.model:
            plan = replace(plan, model=asyncio.run(only_model(plan)))
        rows += asyncio.run(play(arm, plan, cases))
    return sorted(rows, key=lambda row: row.suite)


def main() -> None:
    """Plays the suites, prints the table, and keeps the answers' verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", action="append", metavar="NAME=URL", help="an endpoint; simulated ones if not given")
    parser.add_argument("--real", action="store_true", help="play vLLM on the CPU, alone and behind the gateway")
    parser.add_argument("--model", help="its name at the endpoints, if they have several")
    parser.add_argument("--max-tokens", type=int, help="length limit of every answer")
    parser.add_argument("--suites", default=",".join(SUITES), help="comma-separated")
    parser.add_argument("--most", type=int, default=250, help="cases of each suite, spread over all of it")
    parser.add_argument("--faults", type=float, default=0.25, help="share of the faulty engine's answers")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--timeout-s", type=float, default=120)
    parser.add_argument("--api-key-env")
    parser.add_argument("--kvv", type=Path, default=SHARED / "suites" / "kvv")
    parser.add_argument("--maskbench", type=Path, default=MASKBENCH)
    parser.add_argument("--bfcl", type=Path, default=bfcl.folder())
    parser.add_argument("--tau2", type=Path)
    parser.add_argument("--k2vv", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "public.jsonl", help="a line for each answer")
    parser.add_argument("--picture", type=Path, help="the table as an SVG")
    options = parser.parse_args()
    wanted = options.suites.split(",")
    if unknown := set(wanted) - set(SUITES):
        parser.error(f"unknown suites: {', '.join(sorted(unknown))}; known: {', '.join(SUITES)}")
    folders = {name: getattr(options, "bfcl" if name in _OF_BFCL else name) for name in SUITES}
    try:
        cases = chosen(folders, wanted, options.most)
    except ConfigError as error:
        parser.error(str(error))
    if not cases:
        parser.error("none of these suites is here; name their folders")
    if options.arm:
        if strange := [arm for arm in options.arm if "=" not in arm]:
            parser.error(f"--arm is NAME=URL, not {strange[0]}")
        try:
            rows = _played(dict(arm.split("=", 1) for arm in options.arm), cases, options)
        except ConfigError as error:
            parser.error(str(error))
    elif options.real:
        options.model, options.api_key_env = MODEL, _KEY_ENV
        with real() as arms:
            rows = _played(arms, cases, options)
        RESULTS.with_stem("public_real").write_text(_json({"rows": table(rows), "answers": _wrong(rows)}))
    else:
        options.model = "m"
        with simulated(options.faults) as arms:
            rows = _played(arms, cases, options)
        RESULTS.write_text(_json({"faults": options.faults, "rows": table(rows), "not right": _wrong(rows)}))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows))
    if options.picture:
        options.picture.write_text(picture(table(rows)))
    _print(table(rows))


def _wrong(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [row._asdict() for row in rows if row.verdict != "right"]


def _json(results: Mapping[str, object]) -> str:
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def _print(lines: Sequence[Mapping[str, object]]) -> None:
    shown = Table(*lines[0])
    for line in lines:
        shown.add_row(*map(str, line.values()))
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
