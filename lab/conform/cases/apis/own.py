"""What one API has and the others do not."""

import json

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End, ToolCall, mapping
from lab.conform.case import CaseResult, not_applicable, passed_if
from lab.conform.cases.apis.asking import BOTH, ApiCase, all_of, ask, sound
from lab.conform.cases.apis.speech import Said, saying
from lab.conform.lab import Lab
from lab.scripted.arrival import Arrival

_PATCH = '*** Begin Patch\n+print("日本 \\n")\n*** End Patch'
_CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Edits files."}


async def _counted(api: Api, lab: Lab, route: str) -> CaseResult:
    """A client asks a dozen times in a row, so that counting by generating holds up everybody."""
    counts = []
    trial = lab.trial()
    for words in (f"{trial.mark} hello", f"{trial.mark} {'hello ' * 500}"):
        body = {name: value for name, value in api.first(lab.model, words).items() if name != api.limit}
        reply = await lab.send(body, api.headers(lab.key), path=f"{api.path}/{route}")
        if reply.status in (404, 405, 501):
            return not_applicable(f"{api.path}/{route} is HTTP {reply.status}")
        counts.append(mapping(reply.json()).get("input_tokens"))
    numbers = [count for count in counts if isinstance(count, int)]
    good = len(numbers) == len(counts) and 0 < numbers[0] < numbers[1] and not trial.arrivals
    return passed_if(good, f"{counts} tokens; the engine was asked for {len(trial.arrivals)} answers")


async def count_tokens(api: Api, lab: Lab) -> CaseResult:
    return await _counted(api, lab, "count_tokens")


async def input_tokens(api: Api, lab: Lab) -> CaseResult:
    return await _counted(api, lab, "input_tokens")


async def custom_tool(api: Api, lab: Lab) -> CaseResult:
    """The engine gets a function of one string, whatever its name, and calls it."""

    async def script(arrival: Arrival) -> None:
        function = json.loads(arrival.body)["tools"][0]["function"]
        argument = next(iter(function["parameters"]["properties"]))
        call = ToolCall("call_1", function["name"], json.dumps({argument: _PATCH}))
        await saying(Said(calls=(call,), finish="tool_calls"))(arrival)

    wanted = [ToolCall("call_1", "apply_patch", _PATCH)]
    seen = {}
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, script, stream=stream, tools=[_CUSTOM])
        kinds = [item.get("type") for item in turn.echo]
        good = sound(turn, End.COMPLETE) and turn.calls == wanted and kinds == ["custom_tool_call"]
        seen[way] = (good, f"{kinds} {turn.calls}; {turn.summary()}")
    return all_of(seen)


OWN_CASES = {
    "messages": (
        ApiCase("count-tokens", "`count_tokens` counts, and asks no engine for an answer.", "vercel gateway 17326",
                count_tokens),
    ),
    "responses": (
        ApiCase("custom-tool", "A tool that takes free text is called with the model's text, not with JSON around it.",
                "llama.cpp 20156; smg", custom_tool),
        ApiCase("input-tokens", "`input_tokens` counts, and asks no engine for an answer.", "OpenAI's reference",
                input_tokens),
    ),
}  # fmt: skip
