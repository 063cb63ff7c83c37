"""A trace as a picture: one row for each span, below its parent, on a common axis of time."""

from collections.abc import Sequence
from html import escape

from support.otlp import CollectedSpan

_WIDTH, _NAMES, _ROW, _TOP = 1000, 300, 26, 40
_SCALE = _WIDTH - _NAMES - 110
_COLOURS = {"vllm": "#b45f06"}
_OURS, _FAILED = "#3d6f9e", "#b3261e"
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1d2733}.dim{fill:#5b6775;font-size:12px}"
    ".grid{stroke:#d8dee6}.note{fill:#5b6775;font-size:11px}"
)


def waterfall(spans: Sequence[CollectedSpan]) -> str:
    """Returns an SVG document of one trace."""
    rows = _in_order(spans)
    start_ns = min(span.start_ns for span in spans)
    length_ns = max(span.end_ns for span in spans) - start_ns
    height = _TOP + _ROW * len(rows) + 24
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="A trace of {len(rows)} spans">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        *_axis(length_ns, height),
    ]
    for number, (depth, span) in enumerate(rows):
        out += _row(number, depth, span, start_ns, length_ns)
    return "\n".join([*out, _legend(height), "</svg>", ""])


def _in_order(spans: Sequence[CollectedSpan]) -> list[tuple[int, CollectedSpan]]:
    """Returns depth and span of each row: parents before their children, and these by their beginnings."""
    known = {span.span_id for span in spans}

    def below(parent_id: str | None, depth: int) -> list[tuple[int, CollectedSpan]]:
        children = [span for span in spans if (span.parent_id if span.parent_id in known else None) == parent_id]
        return [row for span in children for row in ((depth, span), *below(span.span_id, depth + 1))]

    return below(None, 0)


def _axis(length_ns: int, height: int) -> list[str]:
    lines = []
    for quarter in range(5):
        x = _NAMES + _SCALE * quarter / 4
        lines.append(f'<line class="grid" x1="{x}" y1="{_TOP - 12}" x2="{x}" y2="{height - 24}"/>')
        lines.append(f'<text class="dim" x="{x + 3}" y="{_TOP - 16}">{length_ns * quarter / 4e6:.0f} ms</text>')
    return lines


def _row(number: int, depth: int, span: CollectedSpan, start_ns: int, length_ns: int) -> list[str]:
    y = _TOP + _ROW * number
    x = _NAMES + _SCALE * (span.start_ns - start_ns) / length_ns
    width = max(2.0, _SCALE * (span.end_ns - span.start_ns) / length_ns)
    colour = _FAILED if span.failed else _COLOURS.get(span.service, _OURS)
    reply = f"{(span.end_ns - span.start_ns) / 1e6:.1f} ms"
    note = f'<tspan class="note" dx="6">{escape(_note(span))}</tspan>' if _note(span) else ""
    return [
        f'<text x="{8 + 16 * depth}" y="{y + 16}">{escape(span.name)}{note}</text>',
        f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 10}" rx="2" fill="{colour}"/>',
        f'<text class="dim" x="{x + width + 5:.1f}" y="{y + 16}">{reply}</text>',
    ]


def _note(span: CollectedSpan) -> str:
    """What tells a span from its like: its pool, and what the guard found."""
    pool = span.attributes.get("specgate.pool") if span.parent_id and span.name != "llm_request" else None
    return " · ".join(str(each) for each in (pool, span.attributes.get("specgate.outcome")) if each)


def _legend(height: int) -> str:
    entries = (("gateway", _OURS), ("engine (vLLM)", _COLOURS["vllm"]), ("failed", _FAILED))
    return "".join(
        f'<rect x="{8 + 130 * number}" y="{height - 16}" width="10" height="10" fill="{colour}"/>'
        f'<text class="dim" x="{22 + 130 * number}" y="{height - 7}">{name}</text>'
        for number, (name, colour) in enumerate(entries)
    )
