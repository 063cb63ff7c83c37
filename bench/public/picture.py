"""The table of verdicts as a picture: a bar for each suite and arm, in shares of its cases."""

from collections.abc import Mapping, Sequence
from html import escape

from bench.public.arms import VERDICTS

_COLOURS = dict(zip(VERDICTS, ("#2e7d32", "#f9a825", "#c62828", "#6a1b9a", "#90a4ae", "#37474f"), strict=True))
_LEFT, _BAR, _ROW, _GAP = 260, 420, 18, 10


def picture(lines: Sequence[Mapping[str, object]]) -> str:
    """Returns an SVG of lines of `bench.public.__main__.table`."""
    shapes: list[str] = []
    y, last = 40, None
    for line in lines:
        y += _GAP if last not in (None, line["suite"]) else 0
        last = line["suite"]
        shapes.append(_text(8, y + 13, f"{line['suite']}: {line['arm']}"))
        x = float(_LEFT)
        for verdict, colour in _COLOURS.items():
            width = _BAR * int(str(line[verdict])) / int(str(line["cases"]))
            if width:
                shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{colour}"/>')
            x += width
        y += _ROW
    legend = [
        f'<rect x="{8 + 110 * place}" y="12" width="12" height="12" fill="{colour}"/>'
        + _text(26 + 110 * place, 22, verdict)
        for place, (verdict, colour) in enumerate(_COLOURS.items())
    ]
    size = f'width="{_LEFT + _BAR + 10}" height="{y + 10}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n' + (
        "\n".join(['<rect width="100%" height="100%" fill="white"/>', *legend, *shapes]) + "\n</svg>\n"
    )


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
