"""Random tool sets, hostile schemas among them: every request ends in valid calls or an explicit error."""

from random import Random

import jsonschema
import pytest

from bench.guard.unseen import BREAKS, measure, tool_set


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_no_request_ends_in_a_broken_call_or_in_silence(rate: float) -> None:
    for row in measure([rate], 25):
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
