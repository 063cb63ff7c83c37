"""`specgate advisories`: lists the published advisories, or shows one of them."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.version import InvalidVersion, Version

from policies import Advisory, load_advisories
from policies.advisory import LastCheck, cut_texts
from policies.engine_args import installed_engine
from policies.freshness import MAX_AGE_DAYS, stale
from serve.cli.output import FOUND, Json, add_command, console, print_json, print_table
from serve.config.compiled_policy import INDEX, SHIPPED_ADVISORIES, sign
from serve.errors import ConfigError

app = typer.Typer(help="Advisories on configurations in which speculation is unsafe.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="Read advisories from this folder instead.")]

_STATUSES = ("confirmed", "suspected", "withdrawn")
_SEVERITIES = ("critical", "high", "medium", "low")

Engine = Annotated[
    str | None,
    typer.Option("--engine", help="The version in use, such as vllm==0.33.0; by default the installed vLLM."),
]


@app.command("list")
def list_all(
    folder: Folder = SHIPPED_ADVISORIES,
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/reference/advisories.md.")] = False,
    stale_only: Annotated[
        bool, typer.Option("--stale", help="Only those that need a new check; exit code 1 if there are any.")
    ] = False,
    engine: Engine = None,
    max_age_days: Annotated[int, typer.Option(help="Days after which a check no longer counts.")] = MAX_AGE_DAYS,
) -> None:
    """List all advisories; exit code 1 if one can't be read, or if a comment has cut one of its texts."""
    advisories = load_advisories(folder)
    if stale_only:
        _list_stale(advisories, engines(engine), max_age_days, as_json)
        return
    if markdown:
        typer.echo(to_markdown(advisories), nl=False)
    elif as_json:
        print_json([_summary(advisory) for advisory in advisories])
    else:
        rows = ((each.id, each.status, each.severity, ", ".join(each.unsafe), each.title) for each in advisories)
        print_table(("advisory", "status", "severity", "unsafe", "title"), rows)
    for advisory in advisories:
        if advisory.problem and not as_json:
            typer.echo(f"{advisory.id}.yaml can't be read: {advisory.problem}", err=True)
    cut = [
        f"{advisory.id}.yaml, line {text}: what follows is a comment; quote the text"
        for advisory in advisories
        if not advisory.problem
        for text in cut_texts((folder / f"{advisory.id}.yaml").read_text(encoding="utf-8"))
    ]
    for line in cut:
        typer.echo(line, err=True)
    if cut or any(advisory.problem for advisory in advisories):
        raise typer.Exit(FOUND)


def _list_stale(advisories: tuple[Advisory, ...], engines: Mapping[str, str], max_age_days: int, as_json: bool) -> None:
    known = {engine for advisory in advisories if advisory.checked for engine in advisory.checked.engine_versions}
    if known and (unknown := engines.keys() - known - {"vllm"}):
        others = " and ".join(sorted(known))
        raise ConfigError(f"--engine: no advisory was checked against {min(unknown)!r}, only {others}")
    reasons = stale(advisories, engines, datetime.now(UTC).date(), max_age_days)
    if as_json:
        print_json([{"id": name, "why": why} for name, why in reasons.items()])
    elif reasons:
        print_table(("advisory", "why"), reasons.items())
    else:
        console().print("no advisory is stale")
    if reasons:
        raise typer.Exit(FOUND)


def engines(text: str | None) -> dict[str, str]:
    """Returns the engine in use and its version."""
    if text is None:
        installed, _ = installed_engine()
        return {"vllm": installed} if installed else {}
    name, _, version = text.partition("==")
    try:
        return {name: str(Version(version))}
    except InvalidVersion as error:
        raise ConfigError(f"--engine: {text!r} is not of the form vllm==0.33.0") from error


add_command(app, "advisories.verify")


@app.command("show")
def show(
    advisory: Annotated[str, typer.Argument(help="Its id, as `specgate advisories list` has it.")],
    folder: Folder = SHIPPED_ADVISORIES,
    as_json: Json = False,
) -> None:
    """Show one advisory with its evidence and its cures."""
    by_id = {loaded.id: loaded for loaded in load_advisories(folder)}
    if advisory not in by_id:
        raise ConfigError(f"no advisory {advisory!r}; `specgate advisories list` shows them all")
    if as_json:
        print_json(dataclasses.asdict(by_id[advisory]))
    else:
        console().print(_section(by_id[advisory]))


@app.command("pack")
def pack(
    folder: Annotated[Path, typer.Option("--folder", help="The advisories to sign, in *.yaml files.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key: Ed25519, PEM.")],
    days: Annotated[int, typer.Option("--days", min=1, help="How long the index holds.")] = MAX_AGE_DAYS,
) -> None:
    """Sign a folder of advisories: writes its `index.jws`, which gateways with `policy.advisories_key` verify."""
    index = sign(folder, key, days)
    until = datetime.fromtimestamp(index.expires_s, UTC)
    typer.echo(f"signed {len(index.digests)} advisories until {until:%Y-%m-%d %H:%M} UTC: {folder / INDEX}")


def to_markdown(advisories: tuple[Advisory, ...]) -> str:
    """Returns a page of all advisories: what is known for certain first, and the gravest of it at the top."""
    head = (
        "# Advisories\n\n"
        "Every configuration that is known to be unsafe, with the "
        "[request classes](../explanation/policy.md#1-features) that it damages. Withdrawn ones stay for the record. "
        "`specgate advisories show ID` prints what an advisory affects, its cures and its evidence. "
        "`make reference` writes this page from `policies/advisories/*.yaml`.\n"
    )
    groups = groupby(sorted(advisories, key=_rank), key=lambda each: (each.status, each.severity))
    return head + "".join(
        f"\n## {status.capitalize()}, {severity}\n\n"
        + "".join(f"- `{each.id}` ({', '.join(f'`{name}`' for name in each.unsafe)}): {each.title}\n" for each in group)
        for (status, severity), group in groups
    )


def _rank(advisory: Advisory) -> tuple[int, int]:
    return _STATUSES.index(advisory.status), _SEVERITIES.index(advisory.severity)


def _summary(advisory: Advisory) -> dict[str, Any]:
    names = ("id", "title", "summary", "status", "severity", "kind", "unsafe", "problem")
    checked = dataclasses.asdict(advisory.checked) if advisory.checked else None
    return {**{name: getattr(advisory, name) for name in names}, "checked": checked}


def _section(advisory: Advisory) -> str:
    effects = ", ".join(f"{mode.replace('_', '-')} {effect}" for mode, effect in advisory.effects.items())
    lines = [
        f"## {advisory.id}",
        "",
        f"{advisory.title}. **{advisory.status}**, {advisory.severity}"
        f"{', a security hole' if advisory.kind == 'security' else ''}.",
        "",
        advisory.summary,
        "",
        f"- Unsafe: {', '.join(f'`{name}`' for name in advisory.unsafe)} ({effects})",
        *(f"- Affects: {_conditions(conditions)}" for conditions in advisory.affects),
        *([f"- Scope: {advisory.scope_reason}"] if advisory.scope_reason else []),
        *(f"- Cure: {cure.text}" for cure in advisory.cures),
        *(f"- {item.kind.capitalize()}: {item.finding} {_rate(item)}({item.source})" for item in advisory.evidence),
        *(f'- Refuted: "{claim["claim"]}" {claim["finding"]}' for claim in advisory.refuted),
        *([f"- Checked: {_checked(advisory.checked)}"] if advisory.checked else []),
        "",
    ]
    return "\n".join(lines)


def _checked(checked: LastCheck) -> str:
    versions = ", ".join(f"{engine} {version}" for engine, version in checked.engine_versions.items())
    return f"{checked.date}, up to {versions}"


def _rate(evidence: Any) -> str:
    if evidence.interval is None:
        return ""
    low, high = evidence.interval
    return f"{evidence.clean}/{evidence.n}, 95 % interval {low:.0%} to {high:.0%} "


def _conditions(conditions: Any) -> str:
    flat = {**conditions, **conditions.get("settings", {})}
    return (
        "; ".join(f"{name} `{_condition(value)}`" for name, value in flat.items() if name != "settings") or "everything"
    )


def _condition(value: Any) -> str:
    if isinstance(value, dict):
        return f"not {_condition(value['not'])}"
    if isinstance(value, list):
        return " or ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
