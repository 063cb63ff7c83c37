"""A request's body as a JSON object, and the words for what is wrong with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from serve.errors import InvalidRequestError
from serve.request.completion import MALFORMED, not_json
from serve.request.density import LARGE_BYTES, check_marks, check_numbers
from serve.request.mending import mend

# Each costs a microsecond and a hundred bytes. Text holds such marks too, but no model reads that much of it.
_MOST_CONTAINERS = 300_000


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that a body is; half a surrogate pair in its texts becomes U+FFFD.

    Raises:
        InvalidRequestError: The body is not a JSON object, or one of more parts than any request has.
    """
    if len(body) > LARGE_BYTES:
        check_numbers(body)
        check_marks(body)
        if body.count(b"{") + body.count(b"[") > _MOST_CONTAINERS:
            message = f"The body has more than {_MOST_CONTAINERS} objects and lists."
            raise InvalidRequestError(message, code="over_limit")
    if not body.strip():
        raise InvalidRequestError("The body is empty.", code="invalid_json")
    try:
        try:
            value = msgspec.json.decode(body)
        except MALFORMED:
            value = msgspec.json.decode(mend(body))
    except MALFORMED as error:
        raise not_json(error) from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    return value


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
    """Returns a field that a body must have.

    Args:
        body: From `read_object`.
        name: The field.
        kind: The type of its value.
        is_a: That type in words, as in "must be a list".

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
    """Returns the error for a part of a request.

    Args:
        where: The part, as `messages.0.content`.
        what: The rest of the sentence that begins with it.
    """
    return InvalidRequestError(f"{where}: {what}", param=where.split(".", 1)[0])
