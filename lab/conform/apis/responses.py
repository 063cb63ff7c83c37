"""OpenAI's Responses API, stateless: how its requests are written, and its whole answers read."""

from collections.abc import Mapping
from typing import Any

from lab.conform.apis.api import Api, Body, events_of
from lab.conform.apis.responses_stream import StreamReader, read_response
from lab.conform.apis.turn import Turn, mapping
from lab.conform.client import Reply


def read(reply: Reply) -> Turn:
    """Returns the answer in a response; an error is one, too."""
    turn = Turn()
    whole = reply.json()
    if reply.status != 200:
        error = mapping(mapping(whole).get("error"))
        turn.fail(error, "type")
        turn.code = str(error.get("code") or turn.code)
    elif isinstance(whole, dict):
        read_response(turn, whole)
    else:
        StreamReader(turn).read(events_of(reply, turn))
    return turn


def _first(model: str, words: str) -> Body:
    return {"model": model, "store": False, "input": [{"role": "user", "content": words}]}


def _next(first: Body, turn: Turn, results: Mapping[str, str]) -> Body:
    more: list[Any] = [
        {"type": "function_call_output", "call_id": each, "output": text} for each, text in results.items()
    ]
    more += [] if results else [{"role": "user", "content": "go on"}]
    return {**first, "input": [*first["input"], *turn.echo, *more]}


def _odd_content(mark: str) -> Mapping[str, Body]:
    begin = {"role": "user", "content": mark}

    def user(part: Any) -> Body:
        return {"input": [{"role": "user", "content": [{"type": "input_text", "text": mark}, part]}]}

    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eHg="}
    tool = RESPONSES.tools[0]
    grammar = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "s: /x/"},
    }
    return {
        "an item of a new type": {"input": [begin, {"type": "hologram", "data": {"x": [1]}}]},
        "an item without a type": {"input": [begin, {"text": "hello"}]},
        "an item that is text": {"input": [begin, "hello"]},
        "a part of a new type": user({"type": "input_hologram", "data": 1}),
        "a part that is text": user("hello"),
        "a result of no call": {"input": [begin, {"type": "function_call_output", "call_id": "no", "output": "sunny"}]},
        "sealed reasoning of another vendor": {"input": [begin, sealed]},
        "an item that is stored elsewhere": {"input": [begin, {"type": "item_reference", "id": "msg_1"}]},
        "a tool of the vendor": {"tools": [tool, {"type": "web_search_2099"}]},
        "a tool with a grammar": {"tools": [tool, grammar]},
        "tools in a namespace": {"tools": [{"type": "namespace", "name": "files", "tools": [tool]}]},
        "a message of a new role": {"input": [begin, {"role": "observer", "content": "hello"}]},
    }


RESPONSES = Api(
    name="responses",
    path="/v1/responses",
    headers=lambda _: {},
    first=_first,
    next=_next,
    read=read,
    tools=(
        {
            "type": "function",
            "name": "look_up",
            "description": "Looks up a city.",
            "parameters": {"type": "object"},
            "strict": False,
        },
    ),
    forced={"tool_choice": {"type": "function", "name": "look_up"}},
    thinking={"reasoning": {"effort": "medium"}},
    instructions="instructions",
    limit="max_output_tokens",
    odd_fields={
        "client_metadata": {"a": "b"},
        "include": ["x.new"],
        "prompt_cache_key": "k",
        "x_new_field": {"a": [1]},
    },
    odd_content=_odd_content,
    malformed={
        "no input": {"input": None},
        "empty input": {"input": []},
        "an input that is a number": {"input": 7},
        "tools that are text": {"tools": "look_up"},
        "a limit that is text": {"max_output_tokens": "many"},
    },
    overflow=lambda turn: turn.code == "context_length_exceeded",
)
