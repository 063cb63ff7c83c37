"""What of a request in another API reaches the engine, and what a gateway does with fields that it does not know."""

from typing import Any

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End, Turn
from lab.conform.case import CaseResult, passed_if
from lab.conform.cases.apis.asking import ApiCase, all_of, ask, at_engine, send, sound
from lab.conform.lab import Lab

_REFUSED = range(400, 500)


async def fields(api: Api, lab: Lab) -> CaseResult:
    given: dict[str, Any] = {api.instructions: "Be brief.", api.limit: 777, "temperature": 0.25, "top_p": 0.5}
    turn, trial = await ask(api, lab, tools=api.tools, **api.forced, **given)
    body = at_engine(trial)
    messages = body.get("messages") or [{}]
    functions = [tool.get("function", {}) for tool in body.get("tools") or ()]
    choice = body.get("tool_choice")
    forced = choice == "required" or choice == {"type": "function", "function": {"name": "look_up"}}
    parts = {
        "instructions": (messages[0].get("role"), messages[0].get("content")) == ("system", "Be brief."),
        "user": messages[-1].get("role") == "user" and trial.mark in str(messages[-1].get("content")),
        "limit": 777 in (body.get("max_tokens"), body.get("max_completion_tokens")),
        "sampling": (body.get("temperature"), body.get("top_p")) == (0.25, 0.5),
        "tools": [(each.get("name"), each.get("parameters")) for each in functions]
        == [("look_up", {"type": "object"})],
        "tool choice": forced,
    }
    lost = [name for name, good in parts.items() if not good]
    return passed_if(not lost, f"lost: {', '.join(lost)}; {turn.summary()}" if lost else "all of them")


async def unknown_fields(api: Api, lab: Lab) -> CaseResult:
    return await _tolerated(api, lab, {name: {name: value} for name, value in api.odd_fields.items()})


async def unknown_content(api: Api, lab: Lab) -> CaseResult:
    mark = lab.trial().mark
    return await _tolerated(api, lab, api.odd_content(mark))


async def _tolerated(api: Api, lab: Lab, odd: Any) -> CaseResult:
    """Each is served, or refused with 4xx and words that a person can read."""
    seen = {}
    for name, members in odd.items():
        reply = await send(api, lab, {**api.first(lab.model, "hello"), **members})
        turn = api.read(reply)
        good = sound(turn) if reply.status == 200 else reply.status in _REFUSED and sound(turn, End.ERROR)
        seen[name] = (good, f"HTTP {reply.status}, {turn.summary()}")
    return all_of(seen)


async def malformed(api: Api, lab: Lab) -> CaseResult:
    """No engine is asked, and the client is told in words."""
    trial = lab.trial()
    bodies: dict[str, Any] = {
        name: {**api.first(lab.model, trial.mark), **members} for name, members in api.malformed.items()
    }
    bodies |= {"no JSON": f'{{"{trial.mark}": '.encode(), "a list": f'["{trial.mark}"]'.encode()}
    seen = {}
    for name, body in bodies.items():
        reply = await send(api, lab, body)
        turn = api.read(reply)
        refused = reply.status in (400, 422) and sound(turn, End.ERROR)
        seen[name] = (refused and not trial.arrivals, f"HTTP {reply.status}, {turn.summary()}")
    return all_of(seen)


async def unknown_model(api: Api, lab: Lab) -> CaseResult:
    trial = lab.trial()
    seen = {}
    for stream in (False, True):
        reply = await send(api, lab, {**api.first("conform-no-such-model", trial.mark), "stream": stream})
        turn: Turn = api.read(reply)
        good = reply.status in (400, 404) and sound(turn, End.ERROR) and not trial.arrivals
        seen["streamed" if stream else "whole"] = (good, f"HTTP {reply.status}, {turn.summary()}")
    return all_of(seen)


CASES = (
    ApiCase("fields", "Instructions, tools, choice, limit and sampling reach the engine as chat has them.",
            "The API's reference", fields),
    ApiCase("unknown-fields", "Fields that nobody knows are tolerated, or refused with 4xx and words; never 5xx.",
            "Clients send new fields before gateways know them", unknown_fields),
    ApiCase("unknown-content", "So are blocks, items, parts, roles and tools.",
            "llama.cpp 20156, 26394; vLLM 33089, 46790", unknown_content),
    ApiCase("malformed", "A body that is wrong is 400 or 422 in the API's shape; no engine is asked.",
            "vLLM 57997", malformed),
    ApiCase("unknown-model", "An unknown model is 404 or 400 in the API's shape; no engine is asked.",
            "The API's reference", unknown_model),
)  # fmt: skip
