import json
from types import FunctionType

import pytest

from serve.parsing.strict_json import _patient, loads


def test_a_long_document_is_read_as_a_short_one() -> None:
    text = json.dumps({"a": [1, -2.5, 1e300, 2**80, "x", None, True, {"b": []}] * 5_000})
    assert len(text) > 256 * 1024
    assert loads(text) == json.loads(text)


def test_a_long_document_is_read_by_a_decoder_that_calls_python_for_every_number() -> None:
    """So that other threads have their turn: C alone would keep the interpreter's lock to the end."""
    assert isinstance(_patient.parse_float, FunctionType)
    assert isinstance(_patient.parse_int, FunctionType)


@pytest.mark.parametrize(
    "text",
    [
        "[" + ",".join(["7" * 4_000] * 300) + "]",
        "{" + ",".join(f'"k{n}":"v"' for n in range(100_000)) + "}",
        "[" * 70_000,
    ],
    ids=["long numbers", "members", "brackets"],
)
def test_a_document_that_would_hold_everybody_up_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too many values"):
        loads(text)


def test_what_is_no_json_is_refused_in_a_long_document_too() -> None:
    with pytest.raises(ValueError, match="NaN"):
        loads("[" + " " * 70_000 + "NaN]")
