"""Tool calls: in the shapes that speculation gives them, cut off, and through a loop of several turns."""

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End, ToolCall, readable
from lab.conform.case import CaseResult, passed_if
from lab.conform.cases.apis.asking import BOTH, ApiCase, all_of, ask, at_engine, send, sound
from lab.conform.cases.apis.speech import ARGUMENTS, CALL, OTHER_CALL, Delta, Said, opening, saying
from lab.conform.lab import Lab

_BOTH_CALLS = Said("Let me see.", calls=(CALL, OTHER_CALL), finish="tool_calls")
_CUT = '{"city": "Köl'
# Kimi's ids hold what other vendors' clients refuse.
_KIMI = ToolCall("functions.look_up:0", "look_up", '{"city": "Köln"}')
_SECOND = ToolCall("functions.look_up:1", "look_up", '{"city": "Bonn"}')
_THOUGHT = "First the weather."


def _arguments(index: int, text: str) -> Delta:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _shapes() -> dict[str, list[Delta]]:
    """Returns the deltas of `_BOTH_CALLS` as engines send them that give several tokens in one step."""
    first, second = CALL, OTHER_CALL
    halves = ARGUMENTS[:9], ARGUMENTS[9:]
    begin: list[Delta] = [{"role": "assistant", "content": ""}]
    text: Delta = {"content": "Let me see."}
    tail = {"content": "me see.", **_arguments(0, halves[1])}
    named = {"index": 0, "function": {"name": first.name}}
    identified = {"index": 0, "id": first.id, "type": "function", "function": {}}
    last = opening(1, second, second.arguments)
    return {
        "two calls, interleaved": [
            *begin, text, opening(0, first, halves[0]), opening(1, second), _arguments(0, halves[1]),
            _arguments(1, second.arguments),
        ],
        "two calls in one chunk": [
            *begin, text, {"tool_calls": opening(0, first, ARGUMENTS)["tool_calls"] + last["tool_calls"]},
        ],
        "the end of a call and text in one chunk": [
            *begin, {"content": "Let "}, opening(0, first, halves[0]), tail, last,
        ],
        "an id before its name": [
            *begin, text, {"tool_calls": [identified]}, {"tool_calls": [named]}, _arguments(0, ARGUMENTS), last,
        ],
        "text and a call in the first chunk": [{**text, **opening(0, first, ARGUMENTS)}, last],
    }  # fmt: skip


async def shapes(api: Api, lab: Lab) -> CaseResult:
    seen = {}
    for name, deltas in _shapes().items():
        turn, _ = await ask(api, lab, saying(_BOTH_CALLS, deltas), stream=True, tools=api.tools)
        whole = (turn.text, readable(turn.calls)) == (_BOTH_CALLS.text, readable(_BOTH_CALLS.calls))
        # An error is no broken call: what counts is that a client never acts on less than the model said.
        good = (sound(turn) and whole) or sound(turn, End.ERROR)
        seen[name] = (good, f"{turn.text!r} {turn.calls}; {turn.summary()}")
    return all_of(seen)


async def cut(api: Api, lab: Lab) -> CaseResult:
    """A call that the limit of tokens cut, and one that is cut although the engine says that it is complete."""
    call = (ToolCall("call_1", "look_up", _CUT),)
    seen = {}
    for finish in ("length", "tool_calls", "stop"):
        for way, stream in BOTH.items():
            said = Said("Let me see.", calls=call, finish=finish)
            turn, _ = await ask(api, lab, saying(said), stream=stream, tools=api.tools)
            good = not turn.faults and turn.end in (End.CUT, End.ERROR) and not turn.calls
            seen[f"{finish}, {way}"] = (good, turn.summary())
    return all_of(seen)


async def loop(api: Api, lab: Lab) -> CaseResult:
    """Two calls, their results in the other order, and the answer to them."""
    calls = (_KIMI, _SECOND)
    seen = {}
    for way, stream in BOTH.items():
        trial = lab.trial(saying(Said("", _THOUGHT, calls, "tool_calls")))
        fields = {"tools": api.tools, "stream": stream, **api.thinking}
        first = {**api.first(lab.model, f"{trial.mark} hello"), **fields}
        turn = api.read(await send(api, lab, first))
        results = {call.id: f"result {number}" for number, call in reversed(list(enumerate(turn.calls)))}
        lab.engine.scripts[trial.mark] = saying(Said("Sunny."))
        end = api.read(await send(api, lab, api.next(first, turn, results)))
        messages = at_engine(trial).get("messages", [])
        reply = [(each["role"], each.get("tool_call_id"), each.get("content")) for each in messages[2:]]
        made = [
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for message in messages[1:2]
            for call in message.get("tool_calls") or ()
        ]
        wanted = [("tool", call.id, f"result {number}") for number, call in enumerate(calls)]
        right = readable(made) == readable(calls) and reply == wanted
        good = sound(turn) and sound(end) and end.text == "Sunny." and right
        seen[way] = (good, f"the engine got {made} and {reply}; {turn.summary()}; {end.summary()}")
    return all_of(seen)


async def thoughts(api: Api, lab: Lab) -> CaseResult:
    """A gateway that keeps nothing has to read the reasoning from what the client sends back."""
    trial = lab.trial(saying(Said("", _THOUGHT, (CALL,), "tool_calls")))
    first = {**api.first(lab.model, f"{trial.mark} hello"), "tools": api.tools, **api.thinking}
    turn = api.read(await send(api, lab, first))
    lab.engine.scripts[trial.mark] = saying(Said("Sunny."))
    await send(api, lab, api.next(first, turn, {call.id: "sunny" for call in turn.calls}))
    turns = [message for message in at_engine(trial).get("messages", []) if message.get("role") == "assistant"]
    kept = [message.get("reasoning") or message.get("reasoning_content") for message in turns]
    return passed_if(kept == [_THOUGHT] and len(trial.arrivals) == 2, f"the engine got the reasoning {kept}")


CASES = (
    ApiCase("call-shapes", "Calls interleaved, joined or mixed with text arrive whole, or the answer is an error.",
            "vLLM 55284, 56077, 39056; PRs 52418, 55371", shapes),
    ApiCase("call-cut", "A call that was cut is never one that a client acts on, whatever the engine says.",
            "vLLM 57998; openai/codex 29549", cut),
    ApiCase("tool-loop", "Calls and their results reach the engine in the next turn, in order, under its own ids.",
            "LiteLLM 32214; vLLM 43244", loop),
    ApiCase("thinking-kept", "Reasoning that the client sends back reaches the engine with its turn.",
            "Switchyard 99; LiteLLM 22997, 23039", thoughts),
)  # fmt: skip
