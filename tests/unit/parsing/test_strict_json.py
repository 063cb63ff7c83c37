import json
from types import FunctionType

import pytest

from serve.dialects.body import read_object
from serve.errors import InvalidRequestError
from serve.parsing.strict_json import _patient, has_long_numbers, loads, repeats_a_key
from serve.request.client_json import check_density


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
        ('{"a": "a", "b": {"a": ":"}}', False),
        ("{}", False),
    ],
)
def test_a_key_of_the_outermost_object_that_comes_twice_is_found(text: str, repeats: bool) -> None:
    assert repeats_a_key(text, json.loads(text)) is repeats


def test_any_depth_that_can_be_read_can_be_looked_through() -> None:
    for depth in range(900, 1000):
        text = '{"a":' * depth + "1" + "}" * depth
        try:
            value = loads(text)
        except ValueError:
            break
        assert repeats_a_key(text, value) is False


def test_many_numbers_of_thousands_of_digits_are_too_many() -> None:
    assert has_long_numbers(b"[" + b",".join([b"7" * 4_000] * 300) + b"]")


def test_as_many_digits_in_short_numbers_are_not() -> None:
    assert not has_long_numbers(b"[" + b",".join([b"1234567890123456"] * 200_000) + b"]")


def test_a_few_long_numbers_and_long_texts_are_not() -> None:
    assert not has_long_numbers(b"[" + b"7" * 100_000 + b"]")
    assert not has_long_numbers(b'"' + b"word 7 " * 500_000 + b'"')


def test_a_body_of_such_numbers_is_the_clients_fault_in_every_api() -> None:
    body = b'{"model": "m", "messages": [], "metadata": [' + b",".join([b"7" * 4_000] * 300) + b"]}"
    for read in (check_density, read_object):
        with pytest.raises(InvalidRequestError, match="digits"):
            read(body)
