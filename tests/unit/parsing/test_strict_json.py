import json
from types import FunctionType

import pytest

from serve.parsing.strict_json import _patient, loads, repeats_a_key


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


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ('{"a": 1, "a": 2}', True),
        ('{"a": 1, "\\u0061": 2}', True),
        ('{"a": {"b": 1}, "c": ":::", "a": 2}', True),
        ('{"a": {"b": 1, "b": 2}, "c": [{"a": 1}]}', False),
        ('{"a": "a: b", "b": ":"}', False),
        ("{}", False),
    ],
)
def test_a_key_of_the_outermost_object_that_comes_twice_is_found(text: str, repeats: bool) -> None:
    assert repeats_a_key(text, len(json.loads(text))) is repeats


def test_any_depth_that_can_be_read_can_be_looked_through() -> None:
    for depth in range(900, 1000):
        text = '{"a":' * depth + "1" + "}" * depth
        try:
            value = loads(text)
        except ValueError:
            break
        assert repeats_a_key(text, len(value)) is False
