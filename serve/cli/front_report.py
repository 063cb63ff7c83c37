"""Reports the findings of `specgate front` as tables, as JSON, and as a configuration file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from rich.markup import escape
from rich.table import Table

from policies.facts import UNKNOWN
from serve.cli.output import console
from serve.discovery.grouping import FoundEngine
from serve.tools.doctor.checkup import first_of

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
        table = Table("fact", "value", "how sure", "source", title=escape(engine.url), title_justify="left")
        for name, finding in engine.findings.items():
            style = _STYLE[finding.confidence]
            table.add_row(
                name, escape(_shown(finding.value)), f"[{style}]{finding.confidence}[/]", escape(finding.source)
            )
        out.print(table)
        if problem := parser_problem(engine):
            out.print(f"warning: {engine.url}: {problem}", markup=False, style="yellow")
    for engine, why in found.silent:
        out.print(f"left out: {engine.url}: {why}", markup=False, style="red")
    for note in found.notes:
        out.print(f"not carried over: {note}", markup=False, style="yellow")
    for name, model in found.document["models"].items():
        for pool, settings in model["pools"].items():
            out.print(f"{name}/{pool}: {', '.join(_places(settings))}", markup=False)
            is_known = (f"{name}/{pool}", "method") not in unknowns(found.document)
            for line in _safety(found.models[name]["requests"], pool, is_known):
                out.print(f"  {line}", markup=False)
    for subject, fact in unknowns(found.document):
        out.print(f"not known: {subject} {fact}; settle it with {_SETTLES[fact]}", markup=False, style="yellow")


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
