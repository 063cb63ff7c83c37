"""`specgate demo`: example requests through the OpenAI SDK against a running gateway, each with what must come back."""

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
from rich.markup import escape
from rich.table import Table

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
class Result:
    """What one request came to, as the client saw it.

    Attributes:
        headers: Response headers, of which `x-specgate-*` tell the decision.
        calls: (name, arguments) of every tool call.
        speculation: vLLM's own `metrics.speculative_decoding`; None where the engine has no drafter.
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
class Case:
    """A request and what makes its answer right.

    Attributes:
        name: Shown in the table.
        kind: The request class, for the reader.
        said: The user's words.
        right: Says what is wrong with a result, or nothing.
        more: Further request fields.
        stream: Whether the answer is streamed.
    """

    name: str
    kind: str
    said: str
    right: Callable[[Result], str | None]
    more: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


def _calls(*expected: tuple[str, Any], speculative: str | None = None) -> Callable[[Result], str | None]:
    def right(result: Result) -> str | None:
        if sorted(result.calls, key=str) != sorted(expected, key=str):
            return f"calls {result.calls}, not {list(expected)}"
        return _speculation(result, speculative)

    return right


def _content(part: str, speculative: str | None = None) -> Callable[[Result], str | None]:
    def right(result: Result) -> str | None:
        if part not in result.content:
            return f"content {result.content!r} without {part!r}"
        return _speculation(result, speculative)

    return right


def _speculation(result: Result, wanted: str | None) -> str | None:
    if wanted is not None and result.speculative != wanted:
        return f"speculation {result.speculative}, not {wanted}"
    if result.speculative == "off" and result.drafted:
        return f"{result.drafted} tokens drafted although speculation was off"
    if result.speculative == "on" and not result.drafted:
        return "nothing drafted although speculation was on"
    return None


def _document(expected: Any) -> Callable[[Result], str | None]:
    def right(result: Result) -> str | None:
        try:
            document = json.loads(result.content)
        except ValueError:
            return f"content {result.content!r} is no JSON"
        return _speculation(result, None) if document == expected else f"{document}, not {expected}"

    return right


def _not_found(result: Result) -> str | None:
    if not isinstance(result.error, openai.NotFoundError):
        return f"expected 404, got {result.error or 'an answer'}"
    return None if "Known models" in str(result.error) else "the error does not name the known models"


def cases(model: str) -> Iterator[Case]:
    """The example requests for one model, in the order of the table."""
    both = {"tools": [WEATHER, SEARCH]}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    named = {"type": "function", "function": {"name": "search"}}
    yield Case("plain chat", "plain", "Tell me about red pandas", _content("red pandas", "on"))
    yield Case("plain chat, streamed", "plain", "Tell me about Lisbon", _content("Lisbon", "on"), stream=True)
    yield Case(
        "tool call", "tools_auto", "What is the weather in Osaka?", _calls(("get_weather", {"city": "Osaka"})), both
    )
    yield Case(
        "parallel calls, streamed", "tools_auto", "What is the weather in Oslo and Lima?",
        _calls(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Lima"})), both, stream=True,
    )  # fmt: skip
    yield Case(
        "Chinese, streamed",
        "tools_auto",
        "北京的天气怎么样？",
        _calls(("get_weather", {"city": "北京"})),
        both,
        stream=True,
    )
    yield Case(
        "tool_choice required", "tools_forced", "Search for red pandas", _calls(("search", {"query": "red pandas"})),
        {**both, "tool_choice": "required"},
    )  # fmt: skip
    yield Case(
        "tool_choice named", "tools_forced", "Search for green tea", _calls(("search", {"query": "green tea"})),
        {**both, "tool_choice": named}, stream=True,
    )  # fmt: skip
    yield Case(
        "strict JSON schema", "json_schema", "Give me JSON with name Ada, count 3",
        _document({"name": "Ada", "count": 3}), {"response_format": schema},
    )  # fmt: skip
    yield Case(
        "opt-out",
        "plain",
        "Tell me about red pandas",
        _content("red pandas", "off"),
        {"extra_body": {"enable_speculative": False}},
    )
    yield Case(
        "opt-in",
        "plain",
        "Tell me about green tea",
        _content("green tea", "on"),
        {"extra_body": {"enable_speculative": True}},
    )


WRONG_MODEL = Case("wrong model name", "", "hello", _not_found)


async def ask(client: openai.AsyncOpenAI, model: str, case: Case) -> Result:
    """Send one case and collect its answer, streamed or whole, into one shape."""
    started = time.monotonic()
    request = {
        "model": model,
        "messages": [{"role": "user", "content": case.said}],
        "temperature": 0,
        "max_tokens": 250,
    }
    send: Callable[..., Awaitable[Result]] = _streamed if case.stream else _whole
    try:
        result = await send(client, {**request, **case.more})
    except openai.APIStatusError as error:
        result = Result(headers=error.response.headers, error=error)
    result.elapsed_ms = (time.monotonic() - started) * 1000
    return result


async def _whole(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Result:
    raw = await client.chat.completions.with_raw_response.create(**request)
    answer = raw.parse()
    choice = answer.choices[0]
    calls = [(call.function.name, _arguments(call.function.arguments)) for call in choice.message.tool_calls or []]
    metrics = (answer.model_extra or {}).get("metrics") or {}
    return Result(
        raw.headers, choice.message.content or "", calls, choice.finish_reason, metrics.get("speculative_decoding")
    )


async def _streamed(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Result:
    async with client.chat.completions.with_streaming_response.create(
        **request, stream=True, stream_options={"include_usage": True}
    ) as raw:
        result, calls = Result(raw.headers), dict[int, list[str]]()
        async for chunk in await raw.parse():
            metrics = (chunk.model_extra or {}).get("metrics") or {}
            result.speculation = metrics.get("speculative_decoding") or result.speculation
            for choice in chunk.choices:
                result.content += choice.delta.content or ""
                result.finish = choice.finish_reason or result.finish
                for call in choice.delta.tool_calls or []:
                    name_and_arguments = calls.setdefault(call.index, ["", ""])
                    if call.function:
                        name_and_arguments[0] += call.function.name or ""
                        name_and_arguments[1] += call.function.arguments or ""
    result.calls = [(name, _arguments(arguments)) for name, arguments in calls.values()]
    return result


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return f"broken JSON: {text}"


@dataclass
class Report:
    """What every case of a run came to: (model, case, result, problem or None)."""

    rows: list[tuple[str, Case, Result, str | None]] = field(default_factory=list)

    @property
    def right(self) -> int:
        return sum(problem is None for *_, problem in self.rows)

    def table(self) -> Table:
        table = Table("model", "request", "class", "pool", "speculation", "drafted", "accepted", "ms", "outcome")
        for model, case, result, problem in self.rows:
            table.add_row(
                model, case.name, case.kind, result.pool, result.speculative, str(result.drafted), str(result.accepted),
                f"{result.elapsed_ms:.0f}", "[green]right" if problem is None else f"[red]{escape(problem)}",
            )  # fmt: skip
        return table

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [
            {
                "model": model, "request": case.name, "class": case.kind, "pool": result.pool,
                "speculative": result.speculative, "drafted": result.drafted, "accepted": result.accepted,
                "ms": round(result.elapsed_ms, 1), "problem": problem,
            }
            for model, case, result, problem in self.rows
        ]  # fmt: skip


async def run(url: str, models: Sequence[str], say: Callable[[str], None]) -> Report:
    """Send every case to every model of the gateway at `url`."""
    report = Report()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        todo = [(model, case) for model in models for case in cases(model)]
        for model, case in [*todo, ("no-such-model", WRONG_MODEL)]:
            result = await ask(client, model, case)
            problem = case.right(result)
            report.rows.append((model, case, result, problem))
            say(f"{model}: {case.name}: {problem or 'right'}")
    return report


TRY_NEXT = """Try next, while `make serve` runs:

  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "tiny-kimi", "messages": [{{"role": "user", "content": "Tell me about Lisbon"}}],
    "enable_speculative": false}}' -i

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  print(client.chat.completions.create(
      model="tiny-qwen", messages=[{{"role": "user", "content": "Tell me about Lisbon"}}],
      extra_body={{"enable_speculative": True}}).choices[0].message.content)
"""
