"""The example requests of `specgate demo`, each with a check of its answer."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the web.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


@dataclass
class ExampleResult:
    """The result of one request, as the client saw it.

    Attributes:
        headers: Response headers; `x-specgate-*` report the decision.
        content: Text of the answer.
        calls: (name, arguments) of every tool call.
        finish: OpenAI's finish reason.
        speculation: vLLM's `metrics.speculative_decoding`; None if the engine has no drafter.
        error: The error, if the gateway answered with one.
        elapsed_ms: From the request to the end of the answer.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str | None = None
    speculation: Mapping[str, Any] | None = None
    error: openai.APIStatusError | None = None
    elapsed_ms: float = 0.0

    @property
    def pool(self) -> str:
        return self.headers.get("x-specgate-pool", "")

    @property
    def speculative(self) -> str:
        return self.headers.get("x-specgate-speculative", "")

    @property
    def drafted(self) -> int:
        return int((self.speculation or {}).get("num_draft_tokens", 0))

    @property
    def accepted(self) -> int:
        return int((self.speculation or {}).get("num_accepted_draft_tokens", 0))


@dataclass(frozen=True)
class Example:
    """A request and the check of its answer.

    Attributes:
        name: Shown in the table.
        kind: Request class, shown in the table.
        prompt: The user's message.
        check: Returns what is wrong with a result, or None.
        more: Additional request fields.
        stream: True to stream the answer.
    """

    name: str
    kind: str
    prompt: str
    check: Callable[[ExampleResult], str | None]
    more: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


def _calls(*expected: tuple[str, Any], speculative: str | None = None) -> Callable[[ExampleResult], str | None]:
    def right(result: ExampleResult) -> str | None:
        if sorted(result.calls, key=str) != sorted(expected, key=str):
            return f"calls {result.calls}, not {list(expected)}"
        return _speculation(result, speculative)

    return right


def _content(part: str, speculative: str | None = None) -> Callable[[ExampleResult], str | None]:
    def right(result: ExampleResult) -> str | None:
        if part not in result.content:
            return f"content {result.content!r} without {part!r}"
        return _speculation(result, speculative)

    return right


def _speculation(result: ExampleResult, wanted: str | None) -> str | None:
    if wanted is not None and result.speculative != wanted:
        return f"speculation {result.speculative}, not {wanted}"
    if result.speculative == "off" and result.drafted:
        return f"{result.drafted} tokens drafted although speculation was off"
    if result.speculative == "on" and not result.drafted:
        return "nothing drafted although speculation was on"
    return None


def _document(expected: Any) -> Callable[[ExampleResult], str | None]:
    def right(result: ExampleResult) -> str | None:
        try:
            document = json.loads(result.content)
        except ValueError:
            return f"content {result.content!r} is not JSON"
        return _speculation(result, None) if document == expected else f"{document}, not {expected}"

    return right


def _not_found(result: ExampleResult) -> str | None:
    if not isinstance(result.error, openai.NotFoundError):
        return f"expected 404, got {result.error or 'an answer'}"
    return None if "Known models" in str(result.error) else "the error does not name the known models"


def examples(model: str) -> Iterator[Example]:
    """Yield the example requests for one model, in the order of the table."""
    both = {"tools": [WEATHER, SEARCH]}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    named = {"type": "function", "function": {"name": "search"}}
    yield Example("plain chat", "plain", "Tell me about red pandas", _content("red pandas", "on"))
    yield Example("plain chat, streamed", "plain", "Tell me about Lisbon", _content("Lisbon", "on"), stream=True)
    yield Example(
        "tool call", "tools_auto", "What is the weather in Osaka?",
        _calls(("get_weather", {"city": "Osaka"}), speculative="on"), both,
    )  # fmt: skip
    yield Example(
        "parallel calls, streamed", "tools_auto", "What is the weather in Oslo and Lima?",
        _calls(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Lima"})), both, stream=True,
    )  # fmt: skip
    yield Example(
        "Chinese, streamed",
        "tools_auto",
        "北京的天气怎么样？",
        _calls(("get_weather", {"city": "北京"})),
        both,
        stream=True,
    )
    yield Example(
        "tool_choice required", "tools_forced", "Search for red pandas", _calls(("search", {"query": "red pandas"})),
        {**both, "tool_choice": "required"},
    )  # fmt: skip
    yield Example(
        "tool_choice named", "tools_forced", "Search for green tea", _calls(("search", {"query": "green tea"})),
        {**both, "tool_choice": named}, stream=True,
    )  # fmt: skip
    yield Example(
        "strict JSON schema", "json_schema", "Give me JSON with name Ada, count 3",
        _document({"name": "Ada", "count": 3}), {"response_format": schema},
    )  # fmt: skip
    yield Example(
        "opt-out",
        "plain",
        "Tell me about red pandas",
        _content("red pandas", "off"),
        {"extra_body": {"enable_speculative": False}},
    )
    yield Example(
        "opt-in",
        "plain",
        "Tell me about green tea",
        _content("green tea", "on"),
        {"extra_body": {"enable_speculative": True}},
    )


WRONG_MODEL = Example("wrong model name", "", "hello", _not_found)
