"""What kind of request is this: one partial decoding of the body, however large it is."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from policies import RequestFeatures
from serve.errors import InvalidRequestError

WISH_FIELD = "enable_speculative"
WISH_HEADER = "x-enable-speculative"
_OWN_FIELDS = frozenset({WISH_FIELD})
_WISHES = {"true": True, "false": False}
_CHOICES = frozenset({"auto", "required", "none"})
_NONE = Raw(b"null")


class _Skipped(Struct):
    """An object of which only the presence counts."""


class _Function(Struct):
    name: str
    strict: bool | None = None


class _Tool(Struct):
    type: str = "function"
    function: _Function | None = None


class _Message(Struct):
    role: str = ""
    content: Raw = _NONE
    tool_calls: list[_Skipped] | None = None


class _JsonSchema(Struct):
    strict: bool | None = None


class _Format(Struct):
    type: str
    json_schema: _JsonSchema | None = None


class _Named(Struct):
    name: str | None = None


class _Choice(Struct):
    type: str
    function: _Named | None = None
    allowed_tools: "dict[str, Any] | None" = None


class _Template(Struct):
    thinking: Any = None
    enable_thinking: Any = None


class _Body(Struct):
    """The fields that the policy needs. The others are skipped without being built."""

    model: str
    messages: list[_Message] | None = None
    prompt: Raw = _NONE
    stream: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    structured_outputs: Raw = _NONE
    guided_json: Raw = _NONE
    guided_regex: Raw = _NONE
    guided_choice: Raw = _NONE
    guided_grammar: Raw = _NONE
    chat_template_kwargs: _Template | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    stop: str | list[str] | None = None
    logprobs: bool | int | None = None
    n: int | None = None
    prompt_cache_key: str | None = None
    enable_speculative: bool | UnsetType = UNSET


_DECODER = msgspec.json.Decoder(_Body)
_AT = re.compile(r" - at `\$\.?(.*)`$")


def extract(
    body: bytes, headers: Mapping[str, str], thinking_default: Callable[[str], bool] = lambda _model: False
) -> RequestFeatures:
    """Read the features of a chat or text completion.

    Args:
        body: The request's body as it came.
        headers: By lower-case name.
        thinking_default: Whether a model thinks when the request does not say, by the name that the caller used.

    Raises:
        InvalidRequestError: The body is not the JSON of such a request.
    """
    asked = _decode(body)
    choice = _tool_choice(asked)
    kind = asked.response_format.type if asked.response_format else "text"
    return RequestFeatures(
        model=asked.model,
        stream=bool(asked.stream),
        tools=len(asked.tools) if asked.tools else 0,
        tool_choice=choice,
        strict_tools=_any_strict(asked.tools),
        strict_schema=_strict_schema(asked.response_format),
        response_format=None if kind == "text" else kind,
        structured_outputs=_given(asked.structured_outputs),
        guided=_guided(asked),
        thinking=_thinking(asked, thinking_default),
        include_reasoning=asked.include_reasoning is not False,
        stop=bool(asked.stop),
        logprobs=asked.logprobs is not None and asked.logprobs is not False,
        n=1 if asked.n is None else asked.n,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        tool_history=_has_tool_history(asked.messages),
        conversation_key=_conversation_key(asked),
        wish=_wish(asked, headers),
        own_fields=asked.enable_speculative is not UNSET,
    )


def _decode(body: bytes) -> _Body:
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


def _tool_choice(asked: _Body) -> str | None:
    """`auto`, `required`, `named` or `none`; None without tools."""
    names = {tool.function.name for tool in asked.tools or () if tool.function}
    choice = asked.tool_choice
    if isinstance(choice, _Choice):
        return _object_choice(choice, names)
    if choice is not None and choice not in _CHOICES:
        raise InvalidRequestError(
            f"`tool_choice` is `auto`, `required`, `none` or an object that names a function, not {choice!r}.",
            "tool_choice",
        )
    if choice == "required" and not asked.tools:
        raise InvalidRequestError("`tool_choice` is `required`, but the request offers no tools.", "tool_choice")
    return choice or "auto" if asked.tools else None


def _object_choice(choice: _Choice, names: set[str]) -> str:
    if choice.type == "allowed_tools":
        return "required" if (choice.allowed_tools or {}).get("mode") == "required" else "auto"
    name = choice.function.name if choice.function else None
    if choice.type != "function" or name is None:
        raise InvalidRequestError(
            'An object as `tool_choice` has the form {"type": "function", "function": {"name": ...}}.', "tool_choice"
        )
    if name not in names:
        offered = ", ".join(sorted(names)) or "none"
        raise InvalidRequestError(
            f"`tool_choice` names the function {name!r}, which `tools` does not offer (it offers: {offered}).",
            "tool_choice",
        )
    return "named"


def _any_strict(tools: list[_Tool] | None) -> bool:
    return any(tool.function is not None and tool.function.strict is True for tool in tools or ())


def _strict_schema(wanted: _Format | None) -> bool:
    return bool(wanted and wanted.json_schema and wanted.json_schema.strict)


def _guided(asked: _Body) -> bool:
    return any(map(_given, (asked.guided_json, asked.guided_regex, asked.guided_choice, asked.guided_grammar)))


def _given(raw: Raw) -> bool:
    return raw is not _NONE and bytes(raw) != b"null"


def _thinking(asked: _Body, default: Callable[[str], bool]) -> bool:
    template = asked.chat_template_kwargs
    if template is not None:
        for said in (template.thinking, template.enable_thinking):
            if said is not None:
                return bool(said)
    if asked.reasoning_effort is not None:
        return asked.reasoning_effort != "none"
    return default(asked.model)


def _has_tool_history(messages: list[_Message] | None) -> bool:
    for message in messages or ():  # noqa: SIM110 - half the time of any() with a generator
        if message.tool_calls or message.role == "tool":
            return True
    return False


def _conversation_key(asked: _Body) -> str:
    """The same for every turn: the client's own cache key, else all up to and with the first message of the user."""
    if asked.prompt_cache_key:
        return asked.prompt_cache_key
    check = crc32(asked.prompt)
    for message in asked.messages or ():
        check = crc32(message.content, check)
        if message.role == "user":
            break
    return f"{check:08x}"


def _wish(asked: _Body, headers: Mapping[str, str]) -> bool | None:
    """Body and header; `false` in either is a guarantee and wins."""
    header = headers.get(WISH_HEADER)
    by_header = None
    if header is not None:
        by_header = _WISHES.get(header.strip().lower())
        if by_header is None:
            raise InvalidRequestError(f"The header {WISH_HEADER} is `true` or `false`, not {header!r}.", WISH_HEADER)
    by_body = None if asked.enable_speculative is UNSET else asked.enable_speculative
    if by_header is False or by_body is False:
        return False
    return by_header or by_body or None


class _Own(Struct):
    enable_speculative: Raw | UnsetType = UNSET


_OWN_DECODER = msgspec.json.Decoder(_Own)
# Whole strings at a stride, so that nothing inside one is taken for structure.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]', re.DOTALL)


def strip_own_fields(body: bytes) -> bytes:
    """Take the gateway's own fields out of a JSON object and leave every other byte as it is.

    Args:
        body: A JSON object that `extract` has accepted.
    """
    if not _may_hold_own_fields(body):
        return body
    start = body.index(b"{") + 1
    members, end = _members(body, start)
    kept = [body[a:b] for a, b in members if not _is_own(body, a, b)]
    return body if len(kept) == len(members) else body[:start] + b",".join(kept) + body[end:]


def _may_hold_own_fields(body: bytes) -> bool:
    if WISH_FIELD.encode() in body:
        return True
    # A key may be spelled with escapes; those of ASCII letters all begin so, and hardly any text has them.
    return b"\\u00" in body and _OWN_DECODER.decode(body).enable_speculative is not UNSET


def _members(body: bytes, start: int) -> tuple[list[tuple[int, int]], int]:
    """The spans of an object's members between their commas, and where the object's closing brace is."""
    spans: list[tuple[int, int]] = []
    depth, begin = 1, start
    for token in _TOKEN.finditer(body, start):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return [*spans, (begin, token.start())], token.start()
        elif mark == b"," and depth == 1:
            spans.append((begin, token.start()))
            begin = token.end()
    raise InvalidRequestError("The body is not valid JSON: the object does not end.", None, "invalid_json")


def _is_own(body: bytes, start: int, end: int) -> bool:
    key = _TOKEN.search(body, start, end)
    return key is not None and key[0][:1] == b'"' and msgspec.json.decode(key[0]) in _OWN_FIELDS
