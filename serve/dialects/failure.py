"""A request's failure as a value: the gateway's own error, or an engine's refusal, for a dialect to put into words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serve.dialects.answer import CHARACTERS_PER_TOKEN
from serve.errors import EngineError, GatewayError, InvalidApiKeyError, retry_after
from serve.stream.ending import REFUSALS

_NUMBER = re.compile(r"\d+")
# vLLM 0.32 and 0.33, OpenAI, llama.cpp and SGLang, as read in their sources; the last two are Anthropic's and Google's.
_OVERFLOW = re.compile(
    r"maximum (context|model|input) length|context length|context window|context size|context_length_exceeded"
    r"|(prompt|input) is too long|input token count",
    re.I,
)
_CHARACTERS = re.compile(r"is (\d+) tokens\..*contains (\d+) characters", re.S)


@dataclass(frozen=True, slots=True)
class Overflow:
    """A prompt that does not fit: its tokens, and those of the model's context, each 0 if the engine did not say."""

    tokens: int
    most: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a request that has no answer.

    Attributes:
        status: HTTP status as chat clients get it.
        code: As `serve.errors` has it, or the engine's own.
        param: The field at fault; of the chat body, if an engine names it.
        retry_after_s: 0 if nobody said.
        overflow: Set if the prompt is too long for the model.
        headers: Response headers that belong to it, by lower-case name.
        refused_key: True if it is the client's key that is wrong; an engine's 401 is about ours.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: float = 0.0
    overflow: Overflow | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    refused_key: bool = False

    @classmethod
    def of_error(cls, error: GatewayError) -> "Failure":
        """Returns the failure that one of our own errors is."""
        refused_key = isinstance(error, InvalidApiKeyError)
        return cls(
            error.status, error.message, error.code, error.param, error.retry_after_s, None, error.headers, refused_key
        )

    @classmethod
    def of_response(cls, status: int, headers: Mapping[str, str], body: bytes) -> "Failure":
        """Returns the failure that an engine's response of any status but 200 is."""
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        after = headers.get("retry-after", "")
        return cls._of_object(answer, status, float(after) if after.isdecimal() else 0.0)

    @classmethod
    def of_frame(cls, error: Any) -> "Failure":
        """Returns the failure that an error in the middle of an engine's stream is."""
        return cls._of_object({"error": error}, EngineError.status, 0.0)

    @classmethod
    def _of_object(cls, answer: Any, status: int, retry_after_s: float) -> "Failure":
        error = answer.get("error", answer) if isinstance(answer, dict) else None
        fields = error if isinstance(error, dict) else {"message": error}
        message, code, param = fields.get("message"), fields.get("code"), fields.get("param")
        if not isinstance(message, str) or not message:
            message = f"The engine answered with status {status}."
        code = code if isinstance(code, str) and code else EngineError.default_code
        overflow = overflow_in(message, f"{code} {fields.get('type')}") if status in REFUSALS else None
        headers = {"retry-after": after} if (after := retry_after(retry_after_s)) else {}
        return cls(status, message, code, param if isinstance(param, str) else None, retry_after_s, overflow, headers)


def overflow_in(message: str, kind: str = "") -> Overflow | None:
    """Returns what an engine's message says about a prompt that is too long; None if it is about something else. `kind`
    is the error's code and type.
    """
    if not _OVERFLOW.search(message) and "context" not in kind:
        return None
    if counted := _CHARACTERS.search(message):
        most, tokens = int(counted[1]), int(counted[2]) // CHARACTERS_PER_TOKEN
    else:
        numbers = sorted(map(int, _NUMBER.findall(message)))
        if len(numbers) < 2:
            return Overflow(0, 0)
        most, tokens = numbers[-2:]
    return Overflow(max(tokens, most + 1), most)
