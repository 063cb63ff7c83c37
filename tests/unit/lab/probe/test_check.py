"""Checking a probe's answers."""

import pytest

from lab.probe.check import check
from lab.probe.grid import ProbeCell


def answer(arguments, finish="tool_calls"):
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"choices": [{"index": 0, "message": {"tool_calls": [call]}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("arguments", "finish", "outcome"),
    [
        ('{"city": "Tokyo"}', "tool_calls", "clean"),
        ('{"city": "Tok', "tool_calls", "truncated"),
        ('{"city": "Tok', "length", "cut"),
        ('{"city": "' + "Tokyo, " * 400, "length", "repetition"),
        ('{"city": 3}', "tool_calls", "schema_mismatch"),
    ],
)
def test_answers_are_checked_as_the_guard_checks_them(arguments, finish, outcome):
    request = ProbeCell("weather", "Weather?", "auto", None, False).body(0)
    assert check(request, answer(arguments, finish))["outcome"] == outcome
