"""A Responses request as the body of a chat completion, and what its answer must remember of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from serve.dialects.answer import estimated_tokens
from serve.dialects.body import read_object, within_depth, written
from serve.dialects.chat import STREAMED, taken_ids
from serve.dialects.count_tokens import counted
from serve.dialects.dialect import Translated
from serve.dialects.responses.conversation import additional_tools, read_items, updated
from serve.dialects.responses.tools import ToolTable, read_choice, read_tools
from serve.errors import InvalidRequestError
from serve.request.completion import HARMLESS, CompletionRequest

SEALED_REASONING = "reasoning.encrypted_content"


class _Request(Struct, kw_only=True, gc=False):
    """The fields that are translated."""

    model: str
    input: str | list[Any]
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None


_MISSING = re.compile(r"missing required field `(.*)`")
_PLACE = re.compile(r" - at `\$\.(.*)`$")

# Fields of a chat completion that mean something else here, or nothing.
_NOT_OURS = frozenset(
    {"messages", "stream", "stream_options", "tools", "tool_choice", "response_format", "n", "best_of", "n_cmpl",
     "prompt", "max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens", "min_tokens", "echo", "suffix",
     "functions", "function_call", "modalities", "prediction", "logprobs", "top_logprobs", "n_probs", "verbosity",
     "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention"}
)  # fmt: skip
# Sampling, the caller's preference and an engine's own fields; the rules for chat requests apply to them.
_AS_THEY_ARE = (HARMLESS | frozenset(CompletionRequest.__struct_fields__)) - _NOT_OURS
# Fields that change nothing here, and that nobody needs to be warned of.
_WITHOUT_EFFECT = frozenset(
    {"store", "metadata", "truncation", "service_tier", "safety_identifier", "stream_options", "client_metadata",
     "prompt_cache_retention", "prompt_cache_options", "max_tool_calls"}
)  # fmt: skip
_HEEDED = {"text": ("format",), "reasoning": ("effort", "summary", "generate_summary")}
_KNOWN = _AS_THEY_ARE | _WITHOUT_EFFECT | frozenset(_Request.__struct_fields__)
# The fields of the request that a response repeats, and what stands there if the request has none.
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


@dataclass(frozen=True, slots=True)
class ResponsesMemo:
    """The parts of a request that its answer needs.

    Attributes:
        tools: The tools by either side's name.
        echo: The fields that every response object repeats.
        seals: True if reasoning goes out sealed as well, for clients that keep nothing else.
        summary: True if the client asked for its reasoning as a summary, which some show and nothing else.
        prompt_tokens: An estimate of the prompt's, if an engine does not report its usage.
        taken_ids: Ids of the calls in the conversation so far.
    """

    tools: ToolTable
    echo: Mapping[str, Any]
    seals: bool
    summary: bool
    prompt_tokens: int
    taken_ids: frozenset[str] = frozenset()


class _Chat(NamedTuple):
    """A request as a chat body, and what else of it matters."""

    body: dict[str, Any]
    tools: ToolTable
    reasoning: Mapping[str, Any]
    include: Sequence[str]
    dropped: tuple[str, ...]


@within_depth()
def decode(body: bytes) -> Translated:
    """Translates a request.

    Raises:
        InvalidRequestError: The body is malformed, or asks for something that is stored elsewhere or runs elsewhere.
    """
    members = _members(body)
    chat = _chat(members)
    encoded = written(chat.body, len(body))
    # Clients that have nothing stored bring reasoning back themselves; some know only sealed one and do not ask for it.
    seals = SEALED_REASONING in chat.include or members.get("store") is False
    summary = bool(chat.reasoning.get("summary") or chat.reasoning.get("generate_summary"))
    messages = chat.body["messages"]
    prompt_tokens = estimated_tokens(messages, len(encoded))
    memo = ResponsesMemo(chat.tools, _echo(members), seals, summary, prompt_tokens, taken_ids(messages))
    return Translated(encoded, bool(chat.body.get("stream")), memo, chat.dropped)


@within_depth()
def decode_count(body: bytes) -> Translated:
    """Translates a body of `POST /v1/responses/input_tokens`; errors are those of `decode`."""
    chat = _chat(_members(body))
    encoded = counted(chat.body, len(body))
    prompt_tokens = estimated_tokens(chat.body["messages"], len(encoded))
    memo = ResponsesMemo(chat.tools, {}, seals=False, summary=False, prompt_tokens=prompt_tokens)
    return Translated(encoded, False, memo, chat.dropped)


def _members(body: bytes) -> dict[str, Any]:
    return {name: value for name, value in read_object(body).items() if value is not None}


def _chat(members: Mapping[str, Any]) -> _Chat:
    request = _typed(members)
    _refuse(request)
    table = read_tools([*(request.tools or ()), *additional_tools(request.input)])
    offered, choice = read_choice(request.tool_choice, table)
    messages, skipped = read_items(request.input, request.instructions or "", table)
    if not messages:
        raise InvalidRequestError("`input` is empty.", param="input")
    text = updated(request.text, "text", request.input)
    reasoning = updated(request.reasoning, "reasoning", request.input)
    chat = {
        **{name: members[name] for name in _AS_THEY_ARE & members.keys()},
        "model": request.model,
        "messages": messages,
        **(STREAMED if request.stream else {}),
        **_tools(offered, choice),
        **_text(text),
        **_reasoning(reasoning),
    }
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = request.max_output_tokens
    dropped = dict.fromkeys([*(f"tools.{kind}" for kind in table.dropped), *skipped, *_unknown(request, members)])
    return _Chat(chat, table, reasoning, request.include or (), tuple(dropped))


def _typed(members: Mapping[str, Any]) -> _Request:
    """Returns the fields that are translated, each of its type.

    Raises:
        InvalidRequestError: A field is missing or of another type.
    """
    try:
        return msgspec.convert(members, _Request)
    except msgspec.ValidationError as error:
        text = str(error)
        if missing := _MISSING.search(text):
            name = missing[1]
            raise InvalidRequestError(f"The field `{name}` is missing.", param=name, code="missing_field") from error
        place = _PLACE.search(text)
        param = place[1] if place else None
        raise InvalidRequestError(f"The field `{param}` is wrong: {_PLACE.sub('', text)}.", param=param) from error


def _refuse(request: _Request) -> None:
    """Refuses what needs a store: to drop it silently would answer another question than the client's."""
    if request.previous_response_id is not None:
        raise InvalidRequestError(
            "`previous_response_id` can't be followed: this gateway stores no responses. Send the whole conversation "
            "as `input`.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    for name, given in (
        ("conversation", request.conversation is not None),
        ("prompt", request.prompt is not None),
        ("background", request.background),
    ):
        if given:
            raise InvalidRequestError(
                f"`{name}` is not supported: this gateway stores nothing.", param=name, code="unsupported_parameter"
            )


def _tools(functions: list[dict[str, Any]], choice: Any) -> dict[str, Any]:
    if not functions:
        return {} if choice in (None, "auto", "none") else {"tool_choice": choice}
    return {"tools": functions} | ({} if choice is None else {"tool_choice": choice})


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    """Returns chat's `response_format`.

    Raises:
        InvalidRequestError: The format is not known.
    """
    form = text.get("format")
    if form is None:
        return {}
    if not isinstance(form, Mapping):
        raise InvalidRequestError("`text.format` must be an object with a `type`.", param="text.format")
    kind = form.get("type")
    if kind == "json_schema":
        given = form.get("json_schema")  # chat's nested shape, which agents send that know both APIs
        form = given if isinstance(given, Mapping) else form
        members = {key: value for key, value in form.items() if key != "type" and value is not None}
        return {"response_format": {"type": kind, "json_schema": {"name": "response", **members}}}
    if kind in ("json_object", "text"):
        return {} if kind == "text" else {"response_format": {"type": kind}}
    raise InvalidRequestError(
        f"`text.format.type` must be `text`, `json_object` or `json_schema`, not {kind!r}.", param="text.format.type"
    )


def _reasoning(reasoning: Mapping[str, Any]) -> dict[str, Any]:
    effort = reasoning.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise InvalidRequestError("`reasoning.effort` must be a string.", param="reasoning.effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _unknown(request: _Request, members: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of what has no effect here and might be missed."""
    yield from sorted(members.keys() - _KNOWN)
    for field, heeded in _HEEDED.items():
        given = members.get(field, {}).items()
        yield from (f"{field}.{name}" for name, value in given if name not in heeded and value is not None)
    for value in request.include or ():
        if value != SEALED_REASONING:
            yield f"include.{value}"


def _echo(members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that a response repeats, encoded once for all its events."""
    given = {name: Raw(msgspec.json.encode(members[name])) for name in _ECHOED.keys() & members.keys()}
    return {**_ECHOED, **given, "background": False, "previous_response_id": None, "store": False,
            "truncation": "disabled"}  # fmt: skip
