"""Random tool sets that nothing else here knows, hostile schemas among them: how every request ends."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import jsonschema

from serve.config.guard import GuardConfig
from serve.errors import IntegrityError
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard
from serve.guard.response import GuardedStream
from serve.http1.sse import DONE, decode_chunk, encode_frame, frame_data, is_done
from serve.stream.line import Line

Unjudged = Literal["pass", "refuse"]
Break = Callable[[str, str, Random], tuple[str, str]]


def _bomb(keyword: str) -> dict[str, Any]:
    """Returns a schema whose work doubles with each of its definitions, wherever it stands."""
    steps = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}
    return {"$id": f"https://example.com/{keyword}", "$defs": {**steps, "d30": {}}, "$ref": "#/$defs/d0"}


def _deep(levels: int) -> dict[str, Any]:
    return {"not": _deep(levels - 1)} if levels else {}


# The schema of one member.
HOSTILE: Sequence[Any] = (
    *map(_bomb, ("allOf", "anyOf", "oneOf")),
    {"pattern": "^(x|xx)*[^x]$"},
    {"pattern": "a{99999999999}"},
    {"pattern": "(?=" * 40 + "x" + ")" * 40},
    {"pattern": "x" * 50_000},
    {"allOf": [{"pattern": f"^(x?){{{n}}}x{{{n}}}y"} for n in range(20, 60)]},
    {"patternProperties": {"(a+)+$": True}},
    {"$ref": "#"},
    {"$ref": "https://example.com/far.json"},
    {"$ref": "file:///etc/hostname"},
    {"$ref": "#/%24defs/%ff"},
    {"$dynamicRef": "#nowhere"},
    {"$id": "http://["},
    {"$schema": "http://example.com/no-such-draft"},
    {"enum": [[n] for n in range(3000)]},
    {"minLength": 10**4000},
    {"maxLength": -1},
    {"type": "strin"},
    {"required": 5},
    {"not": {}},
    {"multipleOf": 0},
    {"multipleOf": 1e-300},
    {"if": {"$ref": "#"}, "then": {"$ref": "#"}, "else": {"$ref": "#"}},
    _deep(60),
)
# All of a tool's parameters.
HOSTILE_WHOLE: Sequence[Any] = (
    "object",
    [],
    5,
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"properties": [], "required": {}},
    {"additionalProperties": _bomb("allOf")},
    {"propertyNames": {"pattern": "^([a-z]+)+[^a-z_0-9]$"}},
    {"minProperties": 10**400},
    {"unevaluatedProperties": {"$ref": "#"}},
    {"properties": {f"p{n}": {"pattern": f"(x+x+)+{n}"} for n in range(2000)}},
)
BREAKS: Mapping[str, Break] = {
    "cut": lambda name, text, rng: (name, text[: rng.randrange(1, len(text))]),
    "another name": lambda name, text, _: (name + "_", text),
    "no arguments": lambda name, text, _: (name, "{}" if text != "{}" else "["),
    "doubled brace": lambda name, text, _: (name, "{" + text),
    "marker": lambda name, text, _: (name, text + "<|tool_call_end|>"),
    "half a character": lambda name, text, rng: (name, text[: rng.randrange(1, len(text))] + "\ufffd"),
    "a list": lambda name, text, _: (name, f"[{text}]"),
    "not a number": lambda name, text, _: (name, text.replace(":", ":NaN,", 1)),
}


@dataclass(frozen=True)
class Unseen:
    """The ends of requests over random tool sets; half of them streamed.

    Attributes:
        hostile: Share of the tool sets with a schema that is meant to harm.
        valid: Requests that ended in valid calls; `unjudged` ones are JSON for a known tool, marked as such.
        errors: Requests that ended in an explicit error.
        broken: Requests that delivered an invalid call. None may.
        silent: Requests that ended as complete without a call or an error. None may.
        worst_ms: CPU time of the guard for one request, at most.
    """

    fault_rate: float
    hostile: float
    requests: int
    valid: int
    unjudged: int
    errors: int
    broken: int
    silent: int
    worst_ms: float


def measure(rates: Sequence[float], requests: int, unjudged: Unjudged = "pass") -> list[Unseen]:
    """Every fault rate without and with hostile schemas.

    Args:
        rates: Shares of broken answers.
        requests: At each rate.
        unjudged: What becomes of a call whose schema can't be applied, as in the guard's settings.
    """
    settings = GuardConfig(mode="strict", unjudged=unjudged)
    return [_measure(rate, hostile, requests, settings) for rate in rates for hostile in (0.0, 0.5)]


def _measure(rate: float, hostile: float, requests: int, settings: GuardConfig) -> Unseen:
    ends: Counter[str] = Counter()
    worst_s = 0.0
    for seed in range(requests):
        rng = Random(f"{rate} {hostile} {seed}")
        body, values = tool_set(rng, hostile=rng.random() < hostile)
        attempts = [_call(rng, values, rate) for _ in range(2)]
        started = time.thread_time()
        calls, guard = (_streamed if seed % 2 else _whole)(settings, body, attempts, rng)
        worst_s = max(worst_s, time.thread_time() - started)
        is_unjudged = guard.verdicts[-1].outcome is Outcome.UNJUDGED
        end = _end(body, calls, guard.state, is_unjudged=is_unjudged)
        ends[end] += 1
        ends["unjudged"] += end == "valid" and is_unjudged
    named = {name: ends[name] for name in ("valid", "unjudged", "errors", "broken", "silent")}
    return Unseen(rate, hostile, requests, **named, worst_ms=1000 * worst_s)


def tool_set(rng: Random, *, hostile: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a request with random tools, and for each tool arguments that its schema describes.

    Args:
        rng: Source of randomness.
        hostile: Whether one tool, or a member of it, has a schema that is meant to harm.
    """
    values = {f"{_word(rng)}_{number}": _object(rng, 3) for number in range(rng.randint(1, 9))}
    schemas = {name: _schema_of(value, rng) for name, value in values.items()}
    if hostile:
        target = rng.choice(sorted(schemas))
        values[target]["odd"] = "x" * 40
        if rng.random() < len(HOSTILE) / (len(HOSTILE) + len(HOSTILE_WHOLE)):
            schemas[target]["properties"]["odd"] = rng.choice(HOSTILE)
        else:
            schemas[target] = rng.choice(HOSTILE_WHOLE)
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
    messages = [{"role": "user", "content": _word(rng)}]
    return {"messages": messages, "tools": tools, "tool_choice": "required"}, values


def _word(rng: Random) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9)))


def _value(rng: Random, depth: int) -> Any:
    makers: list[Callable[[], Any]] = [
        lambda: rng.choice([True, False, None]),
        lambda: rng.randint(-(10**9), 10**9),
        lambda: rng.uniform(-1e6, 1e6),
        lambda: "".join(rng.choice('ab é"\\\n😀{}[]:,') for _ in range(rng.randint(0, 30))),
    ]
    if depth:
        makers += [lambda: _object(rng, depth - 1), lambda: [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]]
    return rng.choice(makers)()


def _object(rng: Random, depth: int) -> dict[str, Any]:
    return {_word(rng): _value(rng, depth) for _ in range(rng.randint(1, 4))}


def _schema_of(value: Any, rng: Random) -> dict[str, Any]:
    """Returns a schema that a value satisfies and many others do not."""
    if isinstance(value, dict):
        properties = {name: _schema_of(member, rng) for name, member in value.items()}
        closed = {"additionalProperties": False} if rng.random() < 0.5 else {}
        return {"type": "object", "properties": properties, "required": sorted(value), **closed}
    if isinstance(value, list):
        items = {"anyOf": [_schema_of(each, rng) for each in value]} if value else False
        return {"type": "array", "maxItems": len(value) + 1, "items": items}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"enum": [value]} if rng.random() < 0.2 else {"type": kinds[type(value)]}


def _call(rng: Random, values: Mapping[str, Any], rate: float) -> tuple[str, str]:
    name = rng.choice(sorted(values))
    text = json.dumps(values[name], ensure_ascii=rng.random() < 0.5)
    return BREAKS[rng.choice(sorted(BREAKS))](name, text, rng) if rng.random() < rate else (name, text)


Attempts = Sequence[tuple[str, str]]
_ENVELOPE = {"id": "c", "created": 1, "model": "m"}


def _whole(
    settings: GuardConfig, body: Mapping[str, Any], attempts: Attempts, _: Random
) -> tuple[list[tuple[str, str]], Guard]:
    guard = WholeGuard(settings, body)
    for name, arguments in attempts:
        if guard.guard.state is GuardState.RERUN:
            guard.guard.restart("other")
        calls = [{"id": "i", "type": "function", "function": {"name": name, "arguments": arguments}}]
        choice = {"index": 0, "message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
        answer = guard.check({**_ENVELOPE, "object": "chat.completion", "choices": [choice]})
        if answer is not None:
            functions = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
            return [(function["name"], function["arguments"]) for function in functions], guard.guard
    assert isinstance(guard.guard.error(), IntegrityError)
    return [], guard.guard


def _streamed(
    settings: GuardConfig, body: Mapping[str, Any], attempts: Attempts, rng: Random
) -> tuple[list[tuple[str, str]], Guard]:
    guard = Guard(settings, body)
    sent = b""
    for call in attempts:
        if guard.state is GuardState.RERUN:
            guard.restart("other")
        stream, data = GuardedStream(guard), _frames(*call, rng)
        line = Line([stream])
        while data and not line.over:
            size = rng.randint(1, 300)
            sent += line.feed(data[:size])
            data = data[size:]
        stream.finish_attempt()
        if guard.state is GuardState.DONE:
            break
    calls: list[tuple[str, str]] = []
    for frame in sent.split(b"\n\n")[:-1]:
        shown = frame_data(frame + b"\n\n")
        for choice in decode_chunk(shown)["choices"] if shown and not is_done(shown) else ():
            for entry in choice["delta"].get("tool_calls") or ():
                if "id" in entry:
                    calls.append((entry["function"]["name"], ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + entry["function"]["arguments"])
    return calls, guard


def _frames(name: str, arguments: str, rng: Random) -> bytes:
    def frame(delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return encode_frame({**_ENVELOPE, "object": "chat.completion.chunk", "choices": [choice]})

    function = {"name": name, "arguments": ""}
    frames = [frame({"tool_calls": [{"index": 0, "id": "i", "type": "function", "function": function}]})]
    while arguments:
        size = rng.randint(1, 12)
        frames.append(frame({"tool_calls": [{"index": 0, "function": {"arguments": arguments[:size]}}]}))
        arguments = arguments[size:]
    return b"".join([*frames, frame({}, "tool_calls"), DONE])


def _end(body: Mapping[str, Any], calls: Sequence[tuple[str, str]], state: GuardState, *, is_unjudged: bool) -> str:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    if is_unjudged:  # the guard has said that it does not know
        schemas = dict.fromkeys(schemas, HOSTILE_WHOLE[0])
    if not all(_is_valid(schemas, *call) for call in calls):
        return "broken"
    if state is not GuardState.DONE:
        return "errors"
    return "valid" if calls else "silent"


def _is_valid(schemas: Mapping[str, Any], name: str, arguments: str) -> bool:
    """Checks a call with `jsonschema` alone; hostile schemas are not applied."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    if name not in schemas or not isinstance(value, dict):
        return False
    if schemas[name] in HOSTILE_WHOLE:
        return True
    properties = {key: schema for key, schema in schemas[name]["properties"].items() if key != "odd"}
    if schemas[name].get("additionalProperties") is False and "odd" in schemas[name]["properties"]:
        properties["odd"] = True
    return jsonschema.Draft202012Validator({**schemas[name], "properties": properties}).is_valid(value)
