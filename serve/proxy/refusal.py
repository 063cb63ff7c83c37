"""An engine's refusal as OpenAI's clients can read it."""

from typing import Any

import msgspec

from serve.errors import EngineError, InvalidRequestError, encode_json
from serve.http1.message import RawHeaders

_LOWEST_SERVER_ERROR = 500
_MAX_SAID = 1000  # characters of a page in HTML, for example


def readable_refusal(status: int, headers: RawHeaders, body: bytes) -> tuple[RawHeaders, bytes]:
    """Returns headers and body of an engine's error: as they are if there is an `error` in it, else in OpenAI's shape.

    vLLM and SGLang say what is wrong in OpenAI's shape. FastAPI below them (`{"detail": ...}`), older releases
    (`{"message": ...}`) and proxies before an engine (HTML, or nothing) do not, and clients show none of theirs.

    Args:
        status: HTTP status, 400 or more.
        headers: For the client.
        body: As the engine sent it.
    """
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = body.decode(errors="replace")
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict | str):
        return headers, body
    kind = EngineError.type if status >= _LOWEST_SERVER_ERROR else InvalidRequestError.type
    said = _said(answer)
    message = f"The engine answered with status {status}{': ' if said else '.'}{said}"
    error = {"message": message, "type": kind, "param": None, "code": EngineError.default_code}
    kept = [(name, value) for name, value in headers if name != b"content-type"]
    return [*kept, (b"content-type", b"application/json")], encode_json({"error": error})


def _said(answer: Any) -> str:
    """Returns an engine's words."""
    if isinstance(answer, dict):
        answer = answer.get("message") or answer.get("detail") or answer
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode() if answer is not None else ""
    return text.strip()[:_MAX_SAID]
