"""Renders a replay's report as one HTML file: SVG bars, no scripts, no external resources."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

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


def to_html(report: Mapping[str, Any]) -> str:
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
