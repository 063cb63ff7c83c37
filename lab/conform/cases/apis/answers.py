"""Answers that are complete: their events, ids, usage and content."""

from collections.abc import Mapping

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End, readable
from lab.conform.case import CaseResult, passed_if
from lab.conform.cases.apis.asking import BOTH, ApiCase, all_of, ask, sound
from lab.conform.cases.apis.speech import CALL, OTHER_CALL, USAGE, Said, saying
from lab.conform.lab import Lab
from lab.scripted.arrival import Script

_TEXT = 'Grüße, 世界 🧑‍🚀 \\ "x" \n\t</b>'
_THOUGHT = 'Erst denken: 你好 "a" \\n.'
_EVERYTHING = Said(_TEXT, _THOUGHT, (CALL, OTHER_CALL), "tool_calls")
_TOKENS = (USAGE["prompt_tokens"], USAGE["completion_tokens"])
_CUT_BYTES = 7


async def order(api: Api, lab: Lab) -> CaseResult:
    """Reasoning, text and two calls, streamed: every kind of event that there is."""
    turn, _ = await ask(api, lab, saying(_EVERYTHING), stream=True, tools=api.tools, **api.thinking)
    return passed_if(sound(turn), turn.summary())


async def ends(api: Api, lab: Lab) -> CaseResult:
    answers = {
        "stop": (Said("hello"), End.COMPLETE),
        "tool_calls": (Said(calls=(CALL,), finish="tool_calls"), End.COMPLETE),
        "a call and stop": (Said(calls=(CALL,)), End.COMPLETE),
        "length": (Said("hello", finish="length"), End.CUT),
        "content_filter": (Said("hello", finish="content_filter"), End.FILTERED),
    }
    seen = {}
    for name, (said, end) in answers.items():
        for way, stream in BOTH.items():
            turn, _ = await ask(api, lab, saying(said), stream=stream, tools=api.tools)
            seen[f"{name}, {way}"] = (sound(turn, end), turn.summary())
    return all_of(seen)


async def ids(api: Api, lab: Lab) -> CaseResult:
    seen = {}
    found = []
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, saying(_EVERYTHING), stream=stream, tools=api.tools)
        found.append(turn.id)
        calls = [call.id for call in turn.calls]
        seen[way] = (sound(turn) and len(set(calls)) == 2, f"ids of calls {calls}; {turn.summary()}")
    return all_of({**seen, "another answer's id": (len(set(found)) == 2, str(found))})


async def usage(api: Api, lab: Lab) -> CaseResult:
    seen = {}
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, saying(Said("hello")), stream=stream)
        seen[way] = (sound(turn) and turn.tokens == _TOKENS, f"{turn.tokens} of {_TOKENS}; {turn.summary()}")
    return all_of(seen)


async def whole_and_stream(api: Api, lab: Lab) -> CaseResult:
    turns = []
    for stream in BOTH.values():
        turn, _ = await ask(api, lab, saying(_EVERYTHING), stream=stream, tools=api.tools, **api.thinking)
        turns.append(turn)
    whole, streamed = turns
    meant = (_TEXT, readable((CALL, OTHER_CALL)))
    right = all((turn.text, readable(turn.calls)) == meant and sound(turn) for turn in turns)
    same = whole.content == streamed.content and whole.tokens == streamed.tokens
    reply = f"whole: {whole.summary()} {whole.content}; streamed: {streamed.summary()} {streamed.content}"
    return passed_if(right and same, "the same" if right and same else reply)


async def small_pieces(api: Api, lab: Lab) -> CaseResult:
    """A chunk for each character, so that escapes in arguments are cut; and the bytes cut anywhere."""

    def anywhere(frames: list[bytes]) -> list[bytes]:
        stream = b"".join(frames)
        return [stream[at : at + _CUT_BYTES] for at in range(0, len(stream), _CUT_BYTES)]

    return await _arrives(
        api,
        lab,
        {
            "a character in each chunk": saying(_EVERYTHING, _EVERYTHING.deltas(1)),
            "bytes cut anywhere": saying(_EVERYTHING, cut=anywhere),
        },
    )


async def large_pieces(api: Api, lab: Lab) -> CaseResult:
    return await _arrives(
        api,
        lab,
        {
            "a text or call in each chunk": saying(_EVERYTHING, _EVERYTHING.deltas(10_000)),
            "all in one segment": saying(_EVERYTHING, cut=lambda frames: [b"".join(frames)]),
            "comments between": saying(_EVERYTHING, cut=lambda frames: [b": ping\n\n" + frame for frame in frames]),
            "CR LF": saying(_EVERYTHING, cut=lambda frames: [frame.replace(b"\n", b"\r\n") for frame in frames]),
        },
    )


async def _arrives(api: Api, lab: Lab, ways: Mapping[str, Script]) -> CaseResult:
    seen = {}
    for way, script in ways.items():
        turn, _ = await ask(api, lab, script, stream=True, tools=api.tools, **api.thinking)
        right = (turn.text, readable(turn.calls)) == (_TEXT, readable((CALL, OTHER_CALL)))
        seen[way] = (sound(turn) and right, f"{turn.text!r} {turn.calls}; {turn.summary()}")
    return all_of(seen)


async def thinking(api: Api, lab: Lab) -> CaseResult:
    seen = {}
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, saying(Said("hello", _THOUGHT)), stream=stream, **api.thinking)
        right = (turn.reasoning, turn.text) == (_THOUGHT, "hello")
        seen[way] = (sound(turn) and right, f"thought {turn.reasoning!r}, said {turn.text!r}; {turn.summary()}")
    return all_of(seen)


async def silence(api: Api, lab: Lab) -> CaseResult:
    """An engine that has nothing to say."""
    seen = {}
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, saying(Said()), stream=stream)
        seen[way] = (sound(turn) and not turn.text, turn.summary())
    return all_of(seen)


CASES = (
    ApiCase(
        "order",
        "Events come in the API's order: one block or item at a time, indices and numbers without a gap, one end.",
        "SDKs raise; claude-code-router 1397, SGLang 24293",
        order,
    ),
    ApiCase(
        "ends",
        "The end says what the engine's finish reason says; a call is never hidden behind another end.",
        "vLLM 57998; Switchyard 300",
        ends,
    ),
    ApiCase("ids", "Answers, items and calls keep their ids from start to end, and no two share one.",
            "LiteLLM 32214; CLIProxyAPI 1875", ids),
    ApiCase("usage", "Usage is what the engine counted, with all its fields.", "LiteLLM 31069; llama.cpp 22659", usage),
    ApiCase("whole-and-stream", "A whole answer and a streamed one are the same.", "LiteLLM 29491, 25605",
            whole_and_stream),
    ApiCase("small-pieces", "Chunks of one character, and bytes cut anywhere, arrive whole.",
            "Speculation makes steps of any size", small_pieces),
    ApiCase("large-pieces", "So do several tokens in a chunk, calls in one piece, comments and CR LF.", "As above",
            large_pieces),
    ApiCase("thinking", "Reasoning arrives as thinking, apart from the text.", "LiteLLM 33224; llama.cpp 20120",
            thinking),
    ApiCase("silence", "An empty answer is a complete one.", "Agents resume what has no end", silence),
)  # fmt: skip
