"""The fields of a request's body that the gateway reads, by one partial decoding, however large the body is."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from serve.errors import InvalidRequestError

NONE = Raw(b"null")
PREFERENCE_FIELD = "enable_speculative"

# `gc=False`: a long conversation is thousands of these, and none can be part of a cycle.


class _Skipped(Struct, gc=False):
    """An object whose presence alone matters."""


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


class CompletionRequest(Struct, gc=False):
    """A chat or text completion: the fields that policy and guard need. All others are skipped, not built."""

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


_DECODER = msgspec.json.Decoder(CompletionRequest)
_LOCATION = re.compile(r" - at `\$\.?(.*)`$")


def parse(body: bytes) -> CompletionRequest:
    """Returns the request that a body holds.

    Raises:
        InvalidRequestError: The body is not the JSON of a chat or text completion.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", None, "invalid_json") from error


def _invalid(text: str) -> InvalidRequestError:
    """Translates msgspec's message about types into one about the request."""
    location = _LOCATION.search(text)
    if location is None and "missing required field `model`" in text:
        return InvalidRequestError("The field `model` is missing.", "model", "missing_field")
    if location is None:
        return InvalidRequestError(f"The body must be a JSON object: {text}.")
    param = location[1]
    return InvalidRequestError(f"The field `{param}` is wrong: {text[: location.start()]}.", param)
