"""A request's body as far as the gateway reads it: one partial decoding, however large it is."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from serve.errors import InvalidRequestError

NONE = Raw(b"null")


WISH_FIELD = "enable_speculative"


# `gc=False`: a long conversation is thousands of these, and none can be part of a cycle.


class _Skipped(Struct, gc=False):
    """An object of which only the presence counts."""


class _Function(Struct, gc=False):
    name: str
    strict: bool | None = None
    parameters: Raw = NONE


class Tool(Struct, gc=False):
    type: str = "function"
    function: _Function | None = None


class Message(Struct, gc=False):
    role: str = ""
    content: Raw = NONE
    tool_calls: list[_Skipped] | None = None


class _JsonSchema(Struct, gc=False):
    strict: bool | None = None
    schema: Raw = NONE


class Format(Struct, gc=False):
    type: str
    json_schema: _JsonSchema | None = None


class _Named(Struct, gc=False):
    name: str | None = None


class Choice(Struct, gc=False):
    type: str
    function: _Named | None = None
    allowed_tools: dict[str, Any] | None = None


class _Template(Struct, gc=False):
    thinking: Any = None
    enable_thinking: Any = None


class Asked(Struct, gc=False):
    """The fields that the policy and the guard need. The others are skipped without being built."""

    model: str
    messages: list[Message] | None = None
    prompt: Raw = NONE
    stream: bool | None = None
    stream_options: Raw = NONE
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    structured_outputs: Raw = NONE
    guided_json: Raw = NONE
    guided_regex: Raw = NONE
    guided_choice: Raw = NONE
    guided_grammar: Raw = NONE
    chat_template_kwargs: _Template | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    stop: str | list[str] | None = None
    logprobs: bool | int | None = None
    n: int | None = None
    prompt_cache_key: str | None = None
    vllm_xargs: dict[str, Raw] | UnsetType | None = UNSET
    enable_speculative: bool | UnsetType = UNSET


_DECODER = msgspec.json.Decoder(Asked)


_AT = re.compile(r" - at `\$\.?(.*)`$")


def read(body: bytes) -> Asked:
    """Read the body of a chat or text completion.

    Raises:
        InvalidRequestError: It is not the JSON of one.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", None, "invalid_json") from error


def _invalid(text: str) -> InvalidRequestError:
    """Say in terms of the request what msgspec says in terms of its types."""
    found = _AT.search(text)
    if "missing required field `model`" in text and not found:
        return InvalidRequestError("The field `model` is missing.", "model", "missing_field")
    param = found[1] if found else None
    problem = text[: found.start()] if found else text
    if param is None:
        return InvalidRequestError(f"The body must be a JSON object: {problem}.")
    return InvalidRequestError(f"The field `{param}` is wrong: {problem}.", param)
