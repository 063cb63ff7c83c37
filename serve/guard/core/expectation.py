"""The expectation that an answer must fulfil, and the request that states it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serve.guard.core.near_copies import NearCopies
from serve.guard.core.prompt_text import PromptText
from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import Budget
from serve.request.completion import MALFORMED, NONE, CompletionRequest, Format, Tool, format_of, not_json
from serve.request.patch import includes_usage

_LIMITS = ("max_completion_tokens", "max_tokens")


class LazyRequest(Mapping[str, Any]):
    """The fields of a chat request that a response must satisfy; of its messages the role of the last one.

    Nothing else of the body is built, since it may hold a million values. All of it is at hand, to look up in it the
    names of an answer, or is empty where nobody does.

    Raises:
        InvalidRequestError: A schema is no JSON that Python could read; decoding the request has skipped it.
    """

    def __init__(self, asked: CompletionRequest, body: bytes = b"") -> None:
        self.body = body
        try:
            self._at_hand: dict[str, Any] = {
                "tools": [_tool(tool) for tool in asked.tools or ()],
                "tool_choice": msgspec.to_builtins(asked.tool_choice),
                "parallel_tool_calls": asked.parallel_tool_calls,
                "response_format": _format(format_of(asked)),
                "stream_options": _decoded(asked.stream_options),
                "n": asked.n,
                "messages": [{"role": message.role} for message in (asked.messages or ())[-1:]],
            }
        except (*MALFORMED, ValueError) as error:
            raise not_json(error) from error
        self._on_demand = {name: getattr(asked, name) for name in ("stop", "stop_token_ids", *_LIMITS)}

    def __getitem__(self, name: str) -> Any:
        return self._at_hand[name] if name in self._at_hand else _decoded(self._on_demand[name])

    def get(self, name: str, default: Any = None) -> Any:
        """Returns what `Mapping.get` does, with half of its calls."""
        return self._at_hand[name] if name in self._at_hand else super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._at_hand, *self._on_demand))

    def __len__(self) -> int:
        return len(self._at_hand) + len(self._on_demand)


def _decoded(source: bytes | msgspec.Raw) -> Any:
    if source is NONE:
        return None
    try:
        return msgspec.json.decode(source)
    except msgspec.ValidationError:  # a number that only Python can hold, such as 1e999
        return json.loads(bytes(source))


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    if function is None:
        return {"type": tool.type}
    parameters = _decoded(function.parameters)
    members = {"name": function.name, "strict": function.strict, "parameters": parameters}
    return {"type": tool.type, "function": members}


def _format(response_format: Format | None) -> dict[str, Any] | None:
    if response_format is None:
        return None
    json_schema = response_format.json_schema
    if json_schema is None:
        return {"type": response_format.type}
    members = {"strict": json_schema.strict, "schema": _decoded(json_schema.schema)}
    return {"type": response_format.type, "json_schema": members}


class Expectation:
    """The demands of one request.

    Attributes:
        grammar: Format of the model's calls, if known; otherwise the markup itself tells.
        raw_tools: The tools that may be called, as declared.
        tools: The schemas of their parameters, by name.
        forced: The one tool that must be called, if `tool_choice` names one.
        calls_required: True if the answer must hold a call.
        single: True if the answer may hold one call only.
        document: The schema of the JSON document that the content must be, if it must be one.
        wants_usage: True if a stream must end with its usage.
        answers: The number of answers.
        near_copies: Finds names in calls that are nearly those of the prompt.
    """

    def __init__(self, request: Mapping[str, Any], grammar: str | None = None) -> None:
        self._request = request
        self.grammar = grammar
        choice = request.get("tool_choice")
        allowed = _mapping(_mapping(choice).get("allowed_tools"))
        names = [_function(tool).get("name") for tool in _sequence(allowed.get("tools"))]
        tools = () if choice == "none" else _sequence(request.get("tools"))
        self.raw_tools: list[Any] = [tool for tool in tools if not names or _function(tool).get("name") in names]
        functions = map(_function, self.raw_tools)
        budget = Budget()
        self.tools: dict[str, Schema] = {
            function["name"]: Schema(function.get("parameters"), strict=function.get("strict") is True, budget=budget)
            for function in functions
            if isinstance(function.get("name"), str)
        }
        named = _mapping(_mapping(choice).get("function")).get("name")
        self.forced: str | None = named if isinstance(named, str) else None
        self.calls_required = "required" in (choice, allowed.get("mode")) or self.forced is not None
        self.single = request.get("parallel_tool_calls") is False
        self.document = _document(_mapping(request.get("response_format")), budget)
        number = request.get("n")
        self.answers = number if type(number) is int else 1
        self.wants_usage = includes_usage(request.get("stream_options"))
        self.prompt = PromptText(_body_of(request))
        self.near_copies = NearCopies(self.prompt)

    @property
    def most_tokens(self) -> int | None:
        """The tokens that the answer may have; None if the request does not say, or asks for several answers."""
        limits = [limit for name in _LIMITS if type(limit := self._request.get(name)) is int]
        return limits[0] if limits and self.answers == 1 else None

    @property
    def silence_is_odd(self) -> bool:
        """True if an answer with neither text nor call would be a loss; after a tool's result it may be meant."""
        messages = _sequence(self._request.get("messages"))
        return not messages or bool(_mapping(messages[-1]).get("role") != "tool")

    @property
    def may_stop(self) -> bool:
        """True if the request names texts or tokens at which the engine is to stop."""
        return bool(self._request.get("stop") or self._request.get("stop_token_ids"))

    def stops_at(self, stop: Any) -> bool:
        """Returns whether the request told the engine to stop at this text, or token (maybe one of the model's own)."""
        if isinstance(stop, str):
            asked = self._request.get("stop")
            return stop == asked or stop in _sequence(asked)
        return type(stop) is int and stop in _sequence(self._request.get("stop_token_ids"))


def _body_of(request: Mapping[str, Any]) -> bytes:
    if isinstance(request, LazyRequest):
        return request.body
    try:
        return msgspec.json.encode({"messages": _sequence(request.get("messages"))})
    except (TypeError, ValueError, RecursionError):
        return b""


def _document(form: Mapping[str, Any], budget: Budget) -> Schema | None:
    """Returns the schema that a JSON answer must satisfy; None if prose will do."""
    if form.get("type") == "json_object":
        return Schema({"type": "object"}, strict=True, budget=budget)
    if form.get("type") == "json_schema":
        json_schema = _mapping(form.get("json_schema"))
        return Schema(json_schema.get("schema"), strict=json_schema.get("strict") is True, budget=budget)
    return None


def _function(tool: Any) -> Mapping[str, Any]:
    return _mapping(_mapping(tool).get("function"))


# Rejecting a malformed request is the engine's job; here it only must do no harm.


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
