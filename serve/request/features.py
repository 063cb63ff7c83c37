"""What kind of request is this, as the policy sees it."""

from collections.abc import Callable, Mapping
from zlib import crc32

from msgspec import UNSET, Raw

from policies import RequestFeatures
from serve.errors import InvalidRequestError
from serve.request.completion import NONE, Asked, Choice, Format, Message, Tool, read

WISH_HEADER = "x-enable-speculative"
_WISHES = {"true": True, "false": False}
_CHOICES = frozenset({"auto", "required", "none"})


def extract(
    body: bytes, headers: Mapping[str, str], thinking_default: Callable[[str], bool] = lambda _model: False
) -> RequestFeatures:
    """The features of a chat or text completion; see `features_of`, and `serve.asked.read` for the body."""
    return features_of(read(body), headers, thinking_default)


def features_of(
    asked: Asked, headers: Mapping[str, str], thinking_default: Callable[[str], bool] = lambda _model: False
) -> RequestFeatures:
    """The features of a request.

    Args:
        asked: Its body.
        headers: By lower-case name.
        thinking_default: Whether a model thinks when the request does not say, by the name that the caller used.

    Raises:
        InvalidRequestError: It contradicts itself, or asks for what there isn't.
    """
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
        preference=_preference(asked, headers),
    )


def _tool_choice(asked: Asked) -> str | None:
    """`auto`, `required`, `named` or `none`; None without tools."""
    names = {tool.function.name for tool in asked.tools or () if tool.function}
    choice = asked.tool_choice
    if isinstance(choice, Choice):
        return _object_choice(choice, names)
    if choice is not None and choice not in _CHOICES:
        raise InvalidRequestError(
            f"`tool_choice` is `auto`, `required`, `none` or an object that names a function, not {choice!r}.",
            "tool_choice",
        )
    if choice == "required" and not asked.tools:
        raise InvalidRequestError("`tool_choice` is `required`, but the request offers no tools.", "tool_choice")
    return choice or "auto" if asked.tools else None


def _object_choice(choice: Choice, names: set[str]) -> str:
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


def _any_strict(tools: list[Tool] | None) -> bool:
    return any(tool.function is not None and tool.function.strict is True for tool in tools or ())


def _strict_schema(wanted: Format | None) -> bool:
    return bool(wanted and wanted.json_schema and wanted.json_schema.strict)


def _guided(asked: Asked) -> bool:
    return any(map(_given, (asked.guided_json, asked.guided_regex, asked.guided_choice, asked.guided_grammar)))


def _given(raw: Raw) -> bool:
    return raw is not NONE and bytes(raw) != b"null"


def _thinking(asked: Asked, default: Callable[[str], bool]) -> bool:
    template = asked.chat_template_kwargs
    if template is not None:
        for said in (template.thinking, template.enable_thinking):
            if said is not None:
                return bool(said)
    if asked.reasoning_effort is not None:
        return asked.reasoning_effort != "none"
    return default(asked.model)


def _has_tool_history(messages: list[Message] | None) -> bool:
    for message in messages or ():  # noqa: SIM110 - half the time of any() with a generator
        if message.tool_calls or message.role == "tool":
            return True
    return False


def _conversation_key(asked: Asked) -> str:
    """The same for every turn: the client's own cache key, else all up to and with the first message of the user."""
    if asked.prompt_cache_key:
        return asked.prompt_cache_key
    check = crc32(asked.prompt)
    for message in asked.messages or ():
        check = crc32(message.content, check)
        if message.role == "user":
            break
    return f"{check:08x}"


def _preference(asked: Asked, headers: Mapping[str, str]) -> bool | None:
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
