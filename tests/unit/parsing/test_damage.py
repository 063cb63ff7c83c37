"""One marker of a good output lost, doubled, or become another: the calls stay what they were, or it is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from serve.parsing import GRAMMARS, ParsedMessage, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import TOOLS, answer, good_call

VALUES = ["Bern", "a < b", "Bern\n", "{}"]


def damaged(units: list[str]) -> Iterator[tuple[str, str]]:
    """How one marker was damaged, and the output with it."""
    markers = list(dict.fromkeys(unit for unit in units if len(unit) > 1))
    for place, unit in enumerate(units):
        if len(unit) == 1:
            continue
        instead = {"lost": "", "doubled": unit * 2, "without its end": unit[:-1], "misspelt": unit[:3] + unit[4:]}
        instead |= {f"became {marker}": marker for marker in markers if marker != unit}
        for how, text in instead.items():
            yield f"{place} {unit} {how}", "".join([*units[:place], text, *units[place + 1 :]])


def called(message: ParsedMessage) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("value", VALUES)
def test_one_damaged_marker_changes_no_call_without_a_report(grammar: str, value: str) -> None:
    calls = "".join(good_call(grammar, f"{value} {number}", number) for number in range(2))
    text = answer(grammar, "Hm.", "Now.", calls)
    whole = called(parse(text, grammar, TOOLS, thinking=True))
    silent = [
        (how, message)
        for how, output in damaged(cases.units(text))
        if not (message := parse(output, grammar, TOOLS, thinking=True)).violations and called(message) != whole
    ]
    assert silent == []
