"""A request's body as a JSON object, and the words for what is wrong with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from serve.errors import InvalidRequestError
from serve.http1.turns import PIECE_BYTES
from serve.request.client_json import LARGE_BYTES, check_marks, check_numbers, mend
from serve.request.completion import MALFORMED, not_json
from serve.request.long_json import LongJson, encode, texts_of

# Each becomes an object, of up to 100 ns. No conversation has as many beside its texts.
_MOST_VALUES = 150_000
_object = msgspec.json.Decoder(Any)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that a body is; half a surrogate pair in its texts becomes U+FFFD.

    Raises:
        InvalidRequestError: The body is not a JSON object, or one of more parts than any request has.
    """
    if len(body) > LARGE_BYTES:
        check_numbers(body)
        check_marks(body)
        _check_values(body)
    if not body.strip():
        raise InvalidRequestError("The body is empty.", code="invalid_json")
    try:
        try:
            value = _read(body)
        except MALFORMED:
            value = _read(mend(body))
    except MALFORMED as error:
        raise not_json(error) from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    return value


def _read(body: bytes) -> Any:
    """Returns the JSON; long texts are made piece by piece."""
    return LongJson(body).decode(_object) if len(body) > PIECE_BYTES else msgspec.json.decode(body)


def written(chat: dict[str, Any], size_bytes: int) -> bytes:
    """Returns a chat body as JSON; in pieces if what it was made of has so many bytes that it takes long."""
    return encode(chat) if size_bytes > PIECE_BYTES else msgspec.json.encode(chat)


def _check_values(body: bytes) -> None:
    """Refuses a body of more values than any request has."""
    if _marks(body, 0, len(body)) <= _MOST_VALUES:
        return
    values = at = 0
    for opening, closing in texts_of(body):
        values += _marks(body, at, opening)
        at = closing
        if values > _MOST_VALUES:
            break
    if values + _marks(body, at, len(body)) > _MOST_VALUES:
        message = f"The body has more than {_MOST_VALUES} values, such as numbers and texts. Send long data as a text."
        raise InvalidRequestError(message, code="over_limit")


def _marks(body: bytes, start: int, end: int) -> int:
    """Returns how many values begin in a part of JSON without texts, or more."""
    if end - start <= PIECE_BYTES:
        return body.count(b",", start, end) + body.count(b"{", start, end) + body.count(b"[", start, end)
    return sum([_marks(body, at, min(at + PIECE_BYTES, end)) for at in range(start, end, PIECE_BYTES)])


@contextmanager
def within_depth() -> Iterator[None]:
    """Runs what reads a body part by part.

    Raises:
        InvalidRequestError: Its parts are within each other more often than anybody's are.
    """
    try:
        yield
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply.", code="invalid_json") from error


def required(body: dict[str, Any], name: str, kind: type | tuple[type, ...], is_a: str) -> Any:
    """Returns a field that a body must have. `is_a` is its type in words, as in "must be a list".

    Raises:
        InvalidRequestError: It is missing, or of another type.
    """
    if name not in body:
        raise InvalidRequestError(f"{name}: Field required", param=name, code="missing_field")
    value = body[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise wrong(name, f"must be {is_a}")
    return value


def wrong(where: str, what: str) -> InvalidRequestError:
    """Returns the error for a part of a request. `where` names it, as `messages.0.content`, and `what` is the rest of
    the sentence.
    """
    return InvalidRequestError(f"{where}: {what}", param=where.split(".", 1)[0])
