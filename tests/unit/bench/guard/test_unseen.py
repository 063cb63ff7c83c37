"""Random tool sets, hostile schemas among them: every request ends in valid calls or an explicit error."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from bench.guard.unseen import BREAKS, HOSTILE, HOSTILE_WHOLE, Unjudged, measure, tool_set
from serve.config.guard import GuardConfig
from serve.guard.core import Outcome, WholeGuard


@pytest.mark.parametrize("unjudged", ["pass", "refuse"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5])
def test_no_request_ends_in_a_broken_call_or_in_silence(rate: float, unjudged: Unjudged) -> None:
    for row in measure([rate], 25, unjudged):
        assert row.unjudged == 0 or unjudged == "pass"
        assert (row.broken, row.silent) == (0, 0)
        assert row.valid + row.errors == row.requests
        assert row.errors == 0 or rate or row.hostile, "sound calls of sound schemas are all delivered"


def test_the_arguments_made_for_a_tool_satisfy_its_schema_and_a_break_changes_the_call() -> None:
    for seed in range(30):
        rng = Random(seed)
        body, values = tool_set(rng, hostile=False)
        for tool in body["tools"]:
            jsonschema.validate(values[tool["function"]["name"]], tool["function"]["parameters"])
    for name, break_ in BREAKS.items():
        assert break_("tool", '{"a": 1}', Random(0)) != ("tool", '{"a": 1}'), name


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_schema_of_a_member_ends_well(number: int) -> None:
    schema = {"type": "object", "properties": {"odd": HOSTILE[number], "sound": {"type": "integer"}}}
    ends_well(schema)


@pytest.mark.parametrize("number", range(len(HOSTILE_WHOLE)))
def test_a_hostile_schema_of_all_parameters_ends_well(number: int) -> None:
    ends_well(HOSTILE_WHOLE[number])


def ends_well(schema: Any) -> None:
    """The answer either passes, and is marked if nobody could judge it, or ends in an error."""
    body = {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}
    function = {"name": "f", "arguments": json.dumps({"odd": "x" * 40, "sound": 1})}
    message = {"content": None, "tool_calls": [{"id": "i", "type": "function", "function": function}]}
    guard = WholeGuard(GuardConfig(mode="strict"), body)
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    passed = guard.check(answer)
    outcome = guard.guard.verdicts[0].outcome
    assert outcome in ((Outcome.CLEAN, Outcome.UNJUDGED) if passed is not None else (Outcome.SCHEMA_MISMATCH,))
