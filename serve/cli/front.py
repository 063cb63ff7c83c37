"""`specgate front`: asks running engines what they are, says what is safe there, and serves in front of them."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.cli.run import Access, AdminPort, Host, KeysDir, Port, StopWithParent, Verbose, run_here
from serve.config.gateway import GatewayConfig
from serve.config.pool import check_url
from serve.discovery.asking import ask_engine
from serve.discovery.grouping import FoundEngine, StatedFact, models_of
from serve.discovery.questions import Answers
from serve.discovery.reading import read
from serve.errors import ConfigError
from serve.tools.doctor.checkup import examine
from serve.tools.doctor.decider import Decider

_EVERYDAY = ("stream", "thinking", "grammar", "strict")  # classes that a request has beside what it is for
_SHOWN_CAUSES = 3
_STYLE = {"certain": "green", "stated": "green", "likely": "yellow", "unknown": "red"}
# What settles a fact that an engine did not tell.
_SETTLES = {
    "method": "--fact POOL.method=eagle3 (or mtp, ngram, ...; none if it does not draft)",
    "family": "--fact MODEL.family=kimi-k2 (or qwen3, ...)",
    "engine": "--fact POOL.engine=vllm and --fact POOL.engine_version=0.32.0",
}

Urls = Annotated[
    list[str], typer.Argument(help="Base URLs of engines, such as http://10.0.0.5:8000.", metavar="URL...")
]
Fact = Annotated[
    list[str] | None, typer.Option(help="A fact that can't be asked: POOL.FACT=VALUE, as speculative.method=eagle3.")
]
KeyEnv = Annotated[
    list[str] | None,
    typer.Option("--api-key-env", help="Environment variable with the engines' key: NAME, or URL=NAME for one engine."),
]
Write = Annotated[Path | None, typer.Option(help="Write the configuration to this file, for `specgate serve`.")]
Check = Annotated[bool, typer.Option("--check", help="Ask and report only; exit code 1 if something is not known.")]
Passive = Annotated[bool, typer.Option("--passive", help="Ask nothing that makes an engine generate tokens.")]


def front(
    urls: Urls,
    fact: Fact = None,
    api_key_env: KeyEnv = None,
    write: Write = None,
    check: Check = False,
    passive: Passive = False,
    as_json: Json = False,
    port: Port = 8000,
    host: Host = "127.0.0.1",
    admin_port: AdminPort = None,
    access: Access = None,
    state_dir: KeysDir = None,
    verbose: Verbose = False,
    stop_with_parent: StopWithParent = False,
) -> None:
    """Ask running engines what they are, and serve in front of them; nothing of them is changed."""
    named = list(dict.fromkeys(map(base_url, urls)))
    keys = _key_names(api_key_env or [], named)
    stated = [StatedFact.of(each) for each in fact or []]
    found = asyncio.run(_found(named, keys, active=not passive))
    engines = [engine for engine, _ in found if "served_names" in engine.findings]
    silent = [(engine, why_silent(answers)) for engine, answers in found if engine not in engines]
    if not engines:
        raise ConfigError("\n".join(("no engine tells what it serves:", *(f"  {e.url}: {why}" for e, why in silent))))
    document = {"models": models_of(engines, stated)}
    config = GatewayConfig.parse(document, "what was found")
    report = examine(Decider(config))
    if as_json:
        print_json(_as_json(engines, silent, document, report))
    else:
        _print(engines, silent, document, report)
    if write is not None:
        write.write_text(_written(engines, document), encoding="utf-8")
        console().print(f"wrote {write}: specgate serve --config {write}", markup=False)
    if check:
        raise typer.Exit(FOUND if silent or any(_open(document)) else 0)
    run_here(config, None, port, host, admin_port, access, state_dir, verbose, stop_with_parent)


def base_url(text: str) -> str:
    """Returns the base of a server's routes, as people write it.

    Raises:
        ConfigError: It can't be one.
    """
    url = text.strip().rstrip("/")
    url = (url if "://" in url else f"http://{url}").removesuffix("/v1").rstrip("/")
    try:
        check_url(url)
    except ValueError as error:
        raise ConfigError(f"{text}: {error}") from error
    return url


def why_silent(answers: Answers) -> str:
    """Returns why an engine did not tell what it serves."""
    answer = answers["models"]
    if not answer.status:
        return f"it does not answer ({answer.error})"
    if answer.status in (401, 403):
        return f"it needs a key (HTTP {answer.status}): --api-key-env NAME, the environment variable that holds it"
    if answer.status == 200:
        return "/v1/models lists no model; is this the base URL of an engine that speaks OpenAI's API?"
    return f"/v1/models answers HTTP {answer.status}; is this the base URL of an engine that speaks OpenAI's API?"


def _key_names(given: Sequence[str], urls: Sequence[str]) -> dict[str, str]:
    """Returns the environment variable of each engine's key, by URL.

    Raises:
        ConfigError: It is not set, or the URL is none of those given.
    """
    names: dict[str, str] = {}
    for each in given:
        url, sign, name = each.rpartition("=")
        if sign and base_url(url) not in urls:
            raise ConfigError(f"--api-key-env {each}: {url} is none of the URLs")
        if not os.environ.get(name):
            raise ConfigError(f"--api-key-env {each}: the environment variable {name} is not set")
        if not os.environ[name].isascii() or not os.environ[name].isprintable():
            raise ConfigError(f"--api-key-env {each}: what {name} holds can't be in a header")
        names |= {base_url(url): name} if sign else {url: name for url in urls if url not in names}
    return names


async def _found(urls: Sequence[str], keys: dict[str, str], active: bool) -> list[tuple[FoundEngine, Answers]]:
    async def one(url: str) -> tuple[FoundEngine, Answers]:
        name = keys.get(url)
        answers = await ask_engine(url, os.environ[name] if name else None, active)
        return FoundEngine(url, name, read(answers)), answers

    return list(await asyncio.gather(*map(one, urls)))


def _open(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (subject, fact) for what is not known and would change a decision."""
    for name, model in document["models"].items():
        if model["family"] == "unknown":
            yield name, "family"
        for pool, settings in model["pools"].items():
            if settings["facts"].get("method", "unknown") == "unknown":
                yield f"{name}/{pool}", "method"
            if "engine" not in settings["facts"]:
                yield f"{name}/{pool}", "engine"


def _print(
    engines: Sequence[FoundEngine],
    silent: Sequence[tuple[FoundEngine, str]],
    document: dict[str, Any],
    report: dict[str, Any],
) -> None:
    out = console()
    for engine in engines:
        table = Table("fact", "value", "how sure", "source", title=escape(engine.url), title_justify="left")
        for name, finding in engine.findings.items():
            style = _STYLE[finding.confidence]
            table.add_row(
                name, escape(_shown(finding.value)), f"[{style}]{finding.confidence}[/]", escape(finding.source)
            )
        out.print(table)
        if problem := parser_problem(engine):
            out.print(f"warning: {engine.url}: {problem}", markup=False, style="yellow")
    for engine, why in silent:
        out.print(f"left out: {engine.url}: {why}", markup=False, style="red")
    for name, model in document["models"].items():
        for pool, settings in model["pools"].items():
            out.print(f"{name}/{pool}: {', '.join(settings['urls'])}", markup=False)
            for line in _safety(report["models"][name]["requests"], pool):
                out.print(f"  {line}", markup=False)
    for subject, fact in _open(document):
        out.print(f"not known: {subject} {fact}; settle it with {_SETTLES[fact]}", markup=False, style="yellow")


def _safety(rows: Sequence[dict[str, Any]], pool: str) -> Iterator[str]:
    """Yields what is sent to a pool, and what is not and why."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        name = " ".join(each for each in row["classes"] if each not in _EVERYDAY)
        kinds.setdefault(tuple(row["pools"][pool]["forbidden_by"]), []).append(name)
    for causes, names in kinds.items():
        more = f" and {len(causes) - _SHOWN_CAUSES} more" if len(causes) > _SHOWN_CAUSES else ""
        verdict = f"not sent there, by {', '.join(causes[:_SHOWN_CAUSES])}{more}" if causes else "safe"
        yield f"{verdict}: {', '.join(dict.fromkeys(names))}"


def parser_problem(engine: FoundEngine) -> str | None:
    """Returns what is wrong with an engine that reads calls in another form than its model writes; None if nothing."""
    grammar, dialect = engine.findings.get("grammar"), engine.findings.get("dialect")
    if grammar is None or dialect is None or grammar.value == dialect.value:
        return None
    return (
        f"its tool-call parser reads {dialect.value}, and its chat template writes {grammar.value}: the engine leaves "
        "calls in the text (the guard reads them); correct --tool-call-parser"
    )


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def _as_json(
    engines: Sequence[FoundEngine],
    silent: Sequence[tuple[FoundEngine, str]],
    document: dict[str, Any],
    report: dict[str, Any],
) -> dict[str, Any]:
    return {
        "engines": [
            {
                "url": engine.url,
                "facts": {
                    name: {"value": each.value, "source": each.source, "confidence": each.confidence}
                    for name, each in engine.findings.items()
                },
                "problem": parser_problem(engine),
            }
            for engine in engines
        ],
        "left_out": [{"url": engine.url, "why": why} for engine, why in silent],
        "config": document,
        "unknown": [{"subject": subject, "fact": fact, "settle": _SETTLES[fact]} for subject, fact in _open(document)],
        "models": report["models"],
    }


def _written(engines: Sequence[FoundEngine], document: dict[str, Any]) -> str:
    """Returns the configuration as a file, which says where its facts come from."""
    lines = ["# Written by `specgate front`; run it with `specgate serve --config FILE`. What engines told:"]
    for engine in engines:
        lines.append(f"# {engine.url}")
        lines += [
            f"#   {name}: {_shown(each.value)} ({each.confidence}; {each.source})"
            for name, each in engine.findings.items()
        ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    """Returns a value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
