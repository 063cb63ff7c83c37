"""A request's body as a JSON object, and the words for what is wrong with it."""

import json
import re
from typing import Any

import msgspec

from serve.errors import InvalidRequestError

_BOM = b"\xef\xbb\xbf"
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object that a body is; half a surrogate pair in its texts becomes U+FFFD.

    Raises:
        InvalidRequestError: The body is not a JSON object.
    """
    body = body.removeprefix(_BOM)
    if not body.strip():
        raise InvalidRequestError("The body is empty.", None, "invalid_json")
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply.", None, "invalid_json") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        value = _mended(body, error)
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    return value


def _mended(body: bytes, error: Exception) -> Any:
    """Returns the value of a body whose texts were cut within a character, as clients do; Python's decoder takes it."""
    try:
        value = json.loads(body)
        return msgspec.json.decode(_HALF_PAIR.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", None, "invalid_json") from error


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
        raise InvalidRequestError(f"{name}: Field required", name, "missing_field")
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
    return InvalidRequestError(f"{where}: {what}", where.split(".", 1)[0])
