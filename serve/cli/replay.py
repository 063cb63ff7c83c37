"""`specgate replay`: decides recorded requests with the gateway's own code, and compares two configurations."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from policies import Decision
from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import GatewayError, InvalidRequestError
from serve.tools.decider import Decider

_WIDTH = 560
_ROW = 26
_LABEL = 260
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>specgate replay</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c2330}}
h2{{margin-top:2rem;font-size:1.1rem}} table{{border-collapse:collapse}}
td,th{{padding:.2rem .8rem .2rem 0;text-align:left}}
td.n{{text-align:right;font-variant-numeric:tabular-nums}} svg text{{font:13px system-ui,sans-serif;fill:#1c2330}}
.a{{fill:#3867d6}} .b{{fill:#d68a38}}</style>
<h1>specgate replay</h1><p>{summary}</p>{sections}</html>
"""


def replay(
    traffic: Annotated[Path, typer.Argument(help='JSON lines: request bodies, or {"body": {...}, "headers": {...}}.')],
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    against: Annotated[Path | None, typer.Option("--against", help="Another configuration to compare with.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with plots to this file.")] = None,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Exit code 1 if a decision differs from --against.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Decide recorded requests again: share speculated, load by pool, cost of advisories, differences."""
    other = Decider.load(against) if against else None
    with traffic.open("rb") as lines:
        report = _compare(Decider.load(config), other, lines)
    if html is not None:
        html.write_text(_to_html(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        _print(report)
    if fail_on_change and report["different"]:
        raise typer.Exit(FOUND)


def _print(report: dict[str, Any]) -> None:
    out = console()
    sides = [("A", report["a"]), *([("B", report["b"])] if report["b"] else [])]
    out.print(f"{report['requests']:,} requests in {report['seconds']:.2f} s, {report['invalid']} of them invalid")
    for name, side in sides:
        out.print(Text(name, "bold"), end="")
        out.print(
            f"  speculated {side['speculative_share']:.1%}, of that under the guard "
            f"{side['optimistic']:,}; opted out in the engine {side['opt_out']:,}; refused {side['refused']:,}"
        )
        table = Table("pool", "requests", "share")
        for pool, count in side["pools"].items():
            table.add_row(pool, f"{count:,}", f"{count / max(report['requests'], 1):.1%}")
        out.print(table)
        if side["advisories"]:
            table = Table("advisory", "diverted", "by it alone")
            for advisory, cost in side["advisories"].items():
                table.add_row(advisory, f"{cost['diverted']:,}", f"{cost['alone']:,}")
            out.print(table)
    if report["b"]:
        out.print(f"different decisions: {report['different']:,}", style="bold")
        table = Table("A", "B", "requests", "first line")
        for change in report["changes"]:
            table.add_row(change["a"], change["b"], f"{change['requests']:,}", str(change["first_line"]))
        out.print(table)


class _RecordedRequest(msgspec.Struct):
    """A line with body and headers; a line may also be just a body."""

    body: msgspec.Raw = msgspec.Raw(b"")
    headers: dict[str, str] = msgspec.field(default_factory=dict)


_DECODER = msgspec.json.Decoder(_RecordedRequest)


@dataclass
class _DecisionCounts:
    """Counts of one policy's decisions.

    Attributes:
        diverted: Requests that an advisory kept from speculating, by advisory.
        alone: Those of them that no other advisory would have diverted.
    """

    requests: int = 0
    speculative: int = 0
    optimistic: int = 0
    opt_out: int = 0
    refused: int = 0
    pools: Counter[str] = field(default_factory=Counter)
    classes: Counter[tuple[str, bool]] = field(default_factory=Counter)
    diverted: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)

    def add(self, decision: Decision) -> None:
        self.requests += 1
        self.speculative += decision.speculative
        self.optimistic += decision.optimistic
        self.opt_out += decision.opt_out
        self.refused += decision.refused
        self.pools[_where(decision)] += 1
        self.classes[decision.classes[0], decision.speculative] += 1
        if not decision.speculative:
            causes = {reason.advisory for reason in decision.reasons if reason.effect == "forbid"}
            self.diverted.update(causes)
            if len(causes) == 1:
                self.alone.update(causes)

    def to_dict(self) -> dict[str, Any]:
        kinds = sorted({kind for kind, _ in self.classes})
        return {
            "speculative_share": self.speculative / self.requests if self.requests else 0.0,
            "speculative": self.speculative,
            "optimistic": self.optimistic,
            "opt_out": self.opt_out,
            "refused": self.refused,
            "pools": dict(self.pools.most_common()),
            "classes": {
                kind: {"speculative": self.classes[kind, True], "other": self.classes[kind, False]} for kind in kinds
            },
            "advisories": {
                name: {"diverted": count, "alone": self.alone[name]} for name, count in self.diverted.most_common()
            },
        }


def _compare(a: Decider, b: Decider | None, lines: Iterable[bytes]) -> dict[str, Any]:
    """Decide every recorded request with one policy or with two. Each line holds one JSON value.

    Returns:
        A report as plain values; `changes` lists the different decisions by kind, most frequent first.
    """
    started = time.perf_counter()
    counts = _DecisionCounts(), _DecisionCounts()
    changes: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    invalid: Counter[str] = Counter()
    requests = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        requests += 1
        try:
            body, headers = _request(line)
            decisions = [decider(body, headers)[1] for decider in (a, b) if decider is not None]
        except GatewayError as error:
            invalid[error.message] += 1
            continue
        for side, decision in zip(counts, decisions, strict=False):
            side.add(decision)
        if b is not None and _where(decisions[0]) != _where(decisions[1]):
            change = _where(decisions[0]), _where(decisions[1])
            changes[change] += 1
            first.setdefault(change, number)
    return {
        "requests": requests,
        "invalid": sum(invalid.values()),
        "invalid_because": dict(invalid.most_common(10)),
        "seconds": time.perf_counter() - started,
        "a": {"policy": a.policy.digest, **counts[0].to_dict()},
        "b": {"policy": b.policy.digest, **counts[1].to_dict()} if b is not None else None,
        "different": sum(changes.values()),
        "changes": [
            {"a": change[0], "b": change[1], "requests": count, "first_line": first[change]}
            for change, count in changes.most_common()
        ],
    }


def _where(decision: Decision) -> str:
    """Returns the pool and its mode, for tables."""
    if decision.refused:
        return f"{decision.model}: refused"
    how = "speculative" if decision.speculative else "opted out" if decision.opt_out else "standard"
    return f"{decision.model}/{decision.pool} ({how})"


def _request(line: bytes) -> tuple[bytes, Mapping[str, str]]:
    try:
        record = _DECODER.decode(line)
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The line is not a recorded request: {error}.") from error
    body = bytes(record.body)
    if not body:
        return line, {}
    if body[:1] == b'"':  # some recorders store the body as a string
        body = str(json.loads(body)).encode()
    return body, {name.lower(): value for name, value in record.headers.items()}


def _to_html(report: Mapping[str, Any]) -> str:
    a, b = report["a"], report["b"]
    shares = {"A": a["speculative_share"]} | ({"B": b["speculative_share"]} if b else {})
    summary = (
        f"{report['requests']:,} requests, {report['invalid']:,} invalid. Speculated: "
        + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        + (f". Decided differently: {report['different']:,}." if b else ".")
    )
    sections = [
        _section("Requests by pool", _bars(_pairs(a["pools"], b and b["pools"]))),
        _section("Speculated, by request class", _bars(_pairs(_kinds(a), b and _kinds(b)))),
        _section("Diverted by advisory", _bars(_pairs(_costs(a), b and _costs(b)))),
    ]
    if b:
        sections.append(_section("What changes from A to B", _changes(report["changes"])))
    return _PAGE.format(summary=escape(summary), sections="".join(sections))


def _kinds(side: Mapping[str, Any]) -> dict[str, int]:
    return {kind: counts["speculative"] for kind, counts in side["classes"].items()}


def _costs(side: Mapping[str, Any]) -> dict[str, int]:
    return {name: cost["diverted"] for name, cost in side["advisories"].items()}


def _pairs(a: Mapping[str, int], b: Mapping[str, int] | None) -> list[tuple[str, int, int | None]]:
    names = dict.fromkeys((*a, *(b or ())))
    return [(name, a.get(name, 0), None if b is None else b.get(name, 0)) for name in names]


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _bars(rows: list[tuple[str, int, int | None]]) -> str:
    if not rows:
        return "<p>None.</p>"
    most = max(1, *(max(a, b or 0) for _, a, b in rows))
    height = _ROW * len(rows)
    drawn = "".join(_bar(place, row, most) for place, row in enumerate(rows))
    return f'<svg role="img" viewBox="0 0 {_LABEL + _WIDTH + 140} {height}" width="100%">{drawn}</svg>'


def _bar(place: int, row: tuple[str, int, int | None], most: int) -> str:
    name, a, b = row
    top = place * _ROW
    sides = [("a", a)] if b is None else [("a", a), ("b", b)]
    thick = (_ROW - 8) / len(sides)
    bars = "".join(
        f'<rect class="{side}" x="{_LABEL}" y="{top + 3 + number * thick:.1f}" '
        f'width="{value / most * _WIDTH:.1f}" height="{thick:.1f}"/>'
        for number, (side, value) in enumerate(sides)
    )
    text = " → ".join(f"{value:,}" for _, value in sides)
    end = _LABEL + max(value for _, value in sides) / most * _WIDTH + 8
    return f'<text x="0" y="{top + 17}">{escape(name)}</text>{bars}<text x="{end:.1f}" y="{top + 17}">{text}</text>'


def _changes(changes: Iterable[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(change['a'])}</td><td>{escape(change['b'])}</td><td class=n>{change['requests']:,}</td>"
        f"<td class=n>{change['first_line']:,}</td></tr>"
        for change in changes
    )
    return f"<table><tr><th>A<th>B<th>requests<th>first line</tr>{rows}</table>"
