"""`specgate front`: asks running engines what they are, says what is safe there, and serves in front of them."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from rich.table import Table
from rich.text import Text

from policies.facts import UNKNOWN
from serve.cli.output import FOUND, Json, console, print_json
from serve.cli.serve import Serving, run_here, with_serving
from serve.config import yaml_files
from serve.config.gateway import GatewayConfig, args_of
from serve.config.pool import check_url
from serve.discovery.asking import ask_engine, why_no_answer
from serve.discovery.configuration import PoolName, StatedFact, complete, models_of, state
from serve.discovery.described import DescribedEngine, Description, explained, with_names
from serve.discovery.manifests import read_description
from serve.discovery.reading import Answers, FoundEngine, read
from serve.errors import ConfigError
from serve.gateway.engine_watch import look_up_of
from serve.launch.alone import needs_ray
from serve.launch.ports import require_free
from serve.tools.decider import Decider
from serve.tools.doctor import examine, first_of

Urls = Annotated[
    list[str] | None, typer.Argument(help="Base URLs of engines, such as http://10.0.0.5:8000.", metavar="[URL]...")
]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        help="What starts these engines, or fronts them now: `vllm serve ...`, a script, a Compose file, "
        "Kubernetes manifests, LiteLLM's config.yaml, vLLM's router.",
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="A configuration whose remote pools are completed.")
]
Fact = Annotated[
    list[str] | None, typer.Option(help="A fact that can't be detected: POOL.FACT=VALUE, as speculative.method=eagle3.")
]
KeyEnv = Annotated[
    list[str] | None,
    typer.Option("--api-key-env", help="Environment variable with the engines' key: NAME, or URL=NAME for one engine."),
]
Write = Annotated[Path | None, typer.Option(help="Write the configuration here, for `specgate serve`.")]
Check = Annotated[bool, typer.Option("--check", help="Only report; exit code 1 if something is unknown.")]
Passive = Annotated[bool, typer.Option("--passive", help="Do not make engines generate tokens.")]
_EVERYDAY = ("stream", "thinking", "grammar", "strict")  # classes that a request has beside what it is for
_SHOWN_CAUSES = 3
_STYLE = {"certain": "green", "stated": "green", "likely": "yellow", "unknown": "red"}
# What settles a fact that an engine did not tell.
_SETTLES = {
    "method": "--fact POOL.method=eagle3 (or mtp, ngram, ...; none if it does not draft)",
    "family": "--fact MODEL.family=kimi-k2 (or qwen3, ...)",
    "engine": "--fact POOL.engine=vllm and --fact POOL.engine_version=0.32.0",
}


class FrontReport(NamedTuple):
    """The findings, and the configuration that follows.

    Attributes:
        models: What is safe where, as `doctor` reports it.
        notes: What files say that is not carried over, or that engines deny.
    """

    engines: Sequence[FoundEngine]
    silent: Sequence[tuple[FoundEngine, str]]
    document: Mapping[str, Any]
    models: Mapping[str, Any]
    notes: Sequence[str] = ()


@with_serving
def front(
    serving: Serving,
    urls: Urls = None,
    from_: From = None,
    config: Config = None,
    fact: Fact = None,
    api_key_env: KeyEnv = None,
    write: Write = None,
    check: Check = False,
    passive: Passive = False,
    json_: Json = False,
) -> None:
    """Detect what running engines are, and serve in front of them without changing them."""
    _refuse_confused(urls or (), from_ or (), config, write)
    if not check:
        require_free(serving.port)  # before engines are asked, which takes a moment
    described = sum(map(_described, from_ or ()), Description())
    facts = [StatedFact.of(each) for each in fact or []]
    if config is not None:
        found, parsed = _in_config(config, described, facts, api_key_env or [], not passive)
    else:
        found, parsed = _in_urls(urls or [], described, facts, api_key_env or [], not passive)
    if json_:
        print_json(as_json(found))
    else:
        print_found(found)
    if write is not None:
        write.write_text(as_file(found), encoding="utf-8")
        console().print(f"wrote {write}: specgate serve --config {write}")
    if check:
        raise typer.Exit(FOUND if found.silent or any(unknowns(found.document)) else 0)
    if (reason := needs_ray(parsed)) is not None:
        raise ConfigError(f"{config} has {reason}: --write FILE, and `specgate serve --config FILE` with Ray")
    run_here(parsed, None, serving)


def _refuse_confused(urls: Sequence[str], from_: Sequence[str], config: Path | None, write: Path | None) -> None:
    """Checks that it is clear which engines are meant, and that what is found can be kept."""
    if config is not None and urls:
        raise ConfigError("the engines of --config stand in it; add those URLs to its pools, or leave --config out")
    if not (urls or from_ or config):
        raise ConfigError("say which engines: their URLs, or a file that names them with --from or --config")
    if files := [each for each in urls if Path(each).exists()]:
        raise ConfigError(f"{files[0]} is a file: --from {files[0]}, or --config if it is specgate's")
    if write is not None and not write.parent.is_dir():
        raise ConfigError(f"--write {write}: there is no folder {write.parent}")


def _in_urls(
    urls: Sequence[str], described: Description, facts: Sequence[StatedFact], keys: Sequence[str], active: bool
) -> tuple[FrontReport, GatewayConfig]:
    """Asks the engines of the command line and of files, and makes a configuration of them."""
    files = [replace(each, url=each.url and base_url(each.url)) for each in described.engines]
    by_url = {each.url: each for each in files if each.url is not None}
    named = list(dict.fromkeys((*map(base_url, urls), *by_url)))
    key_names = {url: each.key_env for url, each in by_url.items() if each.key_env} | _key_names(keys, named)
    targets = [FoundEngine(url, key_names.get(url), {}, url in by_url and by_url[url].resolve) for url in named]
    engines, silent = _told(asyncio.run(_asked(targets, active)))
    nowhere = {engine.url for engine, _ in silent}
    files = [replace(each, url=None) if each.url in nowhere else each for each in files]
    engines, against = _explained(engines, files)
    if not engines:
        lines = (*(f"  {engine.url}: {why}" for engine, why in silent), *(f"  {each}" for each in described.left))
        raise ConfigError("\n".join(("no engine says what it serves:", *lines)))
    models, names = with_names(models_of(engines, facts), files)
    document = {"models": models}
    parsed = GatewayConfig.parse(document, "what was found")
    report = examine(Decider(parsed))["models"]
    return FrontReport(engines, silent, document, report, (*described.left, *names, *against)), parsed


def _in_config(
    path: Path, described: Description, facts: Sequence[StatedFact], keys: Sequence[str], active: bool
) -> tuple[FrontReport, GatewayConfig]:
    """Asks the engines of a configuration's remote pools, and completes it."""
    args = args_of(yaml_files.read(path), path)
    config = GatewayConfig.parse(args, path)
    key_names = _key_names(keys, [url for *_, pool in config.each_pool() for url in pool.addresses])
    asked = asyncio.run(_asked_of_config(config, key_names, active))
    engines: list[FoundEngine] = []
    silent: list[tuple[FoundEngine, str]] = []
    told: dict[PoolName, list[FoundEngine]] = {}
    against: list[str] = []
    for place, answered in asked.items():
        there, away = _told(answered)
        told[place], denied = _explained(there, described.engines)
        engines += told[place]
        silent += away
        against += denied
    document = complete(args, config, told)
    members = {place: [each.findings for each in found] for place, found in told.items()}
    for fact in facts:
        state(document["models"], members, fact)
    parsed = GatewayConfig.parse(document, path)
    report = examine(Decider(parsed))["models"]
    return FrontReport(engines, silent, document, report, (*described.left, *against)), parsed


async def _asked_of_config(
    config: GatewayConfig, key_names: Mapping[str, str], active: bool
) -> dict[PoolName, list[tuple[FoundEngine, Answers]]]:
    found = {}
    for model, _, name, pool in config.each_pool("remote"):
        secret = pool.api_key(f"models.{model}.pools.{name}")
        key = secret.read() if secret is not None else None
        look_up = look_up_of(pool)
        urls = list(pool.addresses) if look_up is None else await look_up()
        targets = [FoundEngine(url, key_names.get(url), {}) for url in urls]
        found[model, name] = await _asked(targets, active, key)
    return found


def _described(given: str) -> Description:
    """Reads a file, or a text that is a command line itself.

    Raises:
        ConfigError: It can't be read, or holds no engine.
    """
    path = Path(given)
    if " " in given.strip() and not path.exists():
        return read_description(given, "the command line", os.environ)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from {given}: it can't be read: {error}") from error
    return read_description(text, path.name, os.environ)


def _explained(
    engines: Sequence[FoundEngine], described: Sequence[DescribedEngine]
) -> tuple[list[FoundEngine], list[str]]:
    pairs = [explained(engine, described) for engine in engines]
    return [engine for engine, _ in pairs], [each for _, against in pairs for each in against]


def _told(asked: Sequence[tuple[FoundEngine, Answers]]) -> tuple[list[FoundEngine], list[tuple[FoundEngine, str]]]:
    """Returns the engines that told what they serve, and the others with why they did not."""
    told = [engine for engine, _ in asked if "served_names" in engine.findings]
    return told, [(engine, why_silent(answers)) for engine, answers in asked if engine not in told]


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
        return why_no_answer(answer.error)
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
        key_of(name, f"--api-key-env {each}")
        names |= {base_url(url): name} if sign else {url: name for url in urls if url not in names}
    return names


def key_of(name: str, place: str) -> str:
    """Returns the key that an environment variable holds.

    Raises:
        ConfigError: It is not set, or can't be in a header.
    """
    key = os.environ.get(name)
    if not key:
        raise ConfigError(f"{place}: the environment variable {name} is not set")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{place}: what {name} holds can't be in a header")
    return key


async def _asked(
    targets: Sequence[FoundEngine], active: bool, key: str | None = None
) -> list[tuple[FoundEngine, Answers]]:
    async def one(target: FoundEngine) -> tuple[FoundEngine, Answers]:
        own = key_of(target.key_env, target.url) if target.key_env else key
        answers = await ask_engine(target.url, own, active)
        return replace(target, findings=read(answers)), answers

    return list(await asyncio.gather(*map(one, targets)))


def unknowns(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields (subject, fact) for what is not known of remote pools and would change a decision."""
    for name, model in document["models"].items():
        if model.get("family", UNKNOWN) == UNKNOWN:
            yield name, "family"
        for pool, settings in model["pools"].items():
            if settings.get("kind") != "remote":
                continue
            facts = settings.get("facts") or {}
            if facts.get("method", UNKNOWN) == UNKNOWN:
                yield f"{name}/{pool}", "method"
            if "engine" not in facts:
                yield f"{name}/{pool}", "engine"


def print_found(found: FrontReport) -> None:
    out = console()
    for engine in found.engines:
        table = Table("fact", "value", "how sure", "source", title=engine.url, title_justify="left")
        for name, finding in engine.findings.items():
            sure = Text(finding.confidence, _STYLE[finding.confidence])
            table.add_row(name, _shown(finding.value), sure, finding.source)
        out.print(table)
        if problem := parser_problem(engine):
            out.print(f"warning: {engine.url}: {problem}", style="yellow")
    for engine, why in found.silent:
        out.print(f"left out: {engine.url}: {why}", style="red")
    for note in found.notes:
        out.print(f"not carried over: {note}", style="yellow")
    for name, model in found.document["models"].items():
        for pool, settings in model["pools"].items():
            out.print(f"{name}/{pool}: {', '.join(_places(settings))}")
            is_known = (f"{name}/{pool}", "method") not in unknowns(found.document)
            for line in _safety(found.models[name]["requests"], pool, is_known):
                out.print(f"  {line}")
    for subject, fact in unknowns(found.document):
        out.print(f"not known: {subject} {fact}; settle it with {_SETTLES[fact]}", style="yellow")


def _places(pool: Mapping[str, Any]) -> Sequence[str]:
    return pool.get("urls") or [str(pool.get("url") or pool.get("endpoints") or "of its own")]


def _safety(rows: Sequence[Mapping[str, Any]], pool: str, is_known: bool) -> Iterator[str]:
    """Yields what is sent to a pool, and what is not, by which advisories: too many, while its method is not known."""
    causes: dict[str, dict[str, None]] = {}
    for row in rows:
        name = " ".join(each for each in row["classes"] if each not in _EVERYDAY)
        causes.setdefault(name, {}).update(dict.fromkeys(row["pools"][pool]["forbidden_by"]))
    kinds: dict[str, list[str]] = {}
    for name, ids in causes.items():
        why = f"by {first_of([*ids], _SHOWN_CAUSES)}" if is_known else "as its method is not known"
        kinds.setdefault(f"not sent there, {why}" if ids else "safe", []).append(name)
    for verdict, names in kinds.items():
        yield f"{verdict}: {', '.join(names)}"


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
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def as_json(found: FrontReport) -> dict[str, Any]:
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
            for engine in found.engines
        ],
        "left_out": [{"url": engine.url, "why": why} for engine, why in found.silent],
        "not_carried_over": list(found.notes),
        "config": _plain(found.document),
        "unknown": [
            {"subject": subject, "fact": fact, "settle": _SETTLES[fact]} for subject, fact in unknowns(found.document)
        ],
        "models": found.models,
    }


def as_file(found: FrontReport) -> str:
    """Returns the configuration as a file, which says where its facts come from."""
    lines = ["# Written by `specgate front`; run it with `specgate serve --config FILE`. What engines reported:"]
    for engine in found.engines:
        lines.append(f"# {engine.url}")
        lines += [
            f"#   {name}: {_shown(each.value)} ({each.confidence}; {each.source})"
            for name, each in engine.findings.items()
        ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(_plain(found.document), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    """Returns a value with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
