import pytest
from serve.parsing.long_numbers import has_long_numbers

from serve.dialects.body import read_object
from serve.errors import InvalidRequestError
from serve.request.client_json import check_density


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
