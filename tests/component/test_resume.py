"""An answer that breaks goes on elsewhere behind its last sound token, and its client sees one answer."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, NamedTuple

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clock import until
from support.guard_harness import TOOL_PARAMETERS, TOOLS
from support.guard_stack import chunks_in, post
from support.stack import Stack
from support.tokens import KIMI_MARKERS, QWEN_MARKERS, asked, asking, hermes_calls, kimi_calls, qwen_call, resuming

from lab.conform.apis.turn import End, Turn
from lab.scripted.tokens import PROMPT_END, TokenFault, TokenModel
from serve.config.rate_limits import RateLimitsConfig
from serve.guard import resume
from serve.guard.attempt_result import AttemptResult
from serve.limits.accounts import NULL_ACCOUNTS, Accounts, AnyAccounts, NullAccounts
from serve.limits.actor import connect
from serve.limits.answer_meter import Meter
from serve.limits.charge import NullCharge
from serve.limits.usage import Usage
from serve.proxy import exchange as exchanges
from serve.proxy import stalls
from serve.stream.splice import KeptPrefix
from serve.stream.stages import TokenIds
from serve.telemetry.instruments import Telemetry

EXAMPLES = int(os.environ.get("SPECGATE_RESUME_EXAMPLES", "15"))  # for each of 12 cells
SAID = "plan a trip"
ARGUMENTS = {"city": "成都市", "days": 3, "notes": ["a", "b <c>"]}
OTHERS = {"city": "Oslo", "days": 2}
QWEN = f"I will look. 好的\n\n{qwen_call('get_weather', **ARGUMENTS)}\n{qwen_call('plan_trip', **OTHERS)}"
KIMI = "I will look. 好的" + kimi_calls(("get_weather", ARGUMENTS), ("plan_trip", OTHERS))
FAMILIES = {"qwen3_coder": QWEN_MARKERS, "hermes": QWEN_MARKERS, "kimi_k2": KIMI_MARKERS}


class Two(NamedTuple):
    """Two engines behind a gateway; the first one answers first."""

    first: TokenModel
    second: TokenModel
    text: str
    stack: Stack
    judged: list[AttemptResult]
    telemetry: Telemetry
    run: Callable[[Coroutine[Any, Any, Any]], Any]

    def say(
        self, text: str, *faults: TokenFault | None, then: Sequence[TokenFault | None] = (), pause_s: float = 0.0
    ) -> None:
        """The answer of both, and the faults of either's next generations."""
        for engine, wrong in ((self.first, faults), (self.second, then)):
            engine.answers[SAID] = text
            engine.faults = list(wrong)
            engine.pause_s = pause_s
            engine.bodies.clear()
        self.judged.clear()

    def ask(self, api: str = "chat", **more: Any) -> Turn:
        turn: Turn = self.run(asked(self.stack.url, api, SAID, **more))
        return turn


@contextmanager
def two(
    grammar: str = "qwen3_coder",
    thinking: bool = False,
    per_chunk: int = 1,
    tells_ids: bool = True,
    accounts: AnyAccounts = NULL_ACCOUNTS,
    configured: str = "",
    pool: Mapping[str, Any] | None = None,
    together: bool = False,
    **guard: Any,
) -> Iterator[Two]:
    telemetry = Telemetry({})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def begin(resources: AsyncExitStack) -> Two:
        markers = FAMILIES[grammar]
        more: Any = {"thinking": thinking, "per_chunk": per_chunk, "tells_ids": tells_ids}
        pair = [TokenModel({}, grammar, markers, **more) for _ in range(2)]
        gateway = resuming(*pair, configured or grammar, guard, thinking, telemetry, accounts, pool, together=together)
        stack, judged = await resources.enter_async_context(gateway)
        return Two(*pair, QWEN if grammar == "qwen3_coder" else KIMI, stack, judged, telemetry, run)

    resources = AsyncExitStack()
    try:
        yield run(begin(resources))
    finally:
        run(resources.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(
    scope="module", params=[("qwen3_coder", None), ("kimi_k2", None), ("kimi_k2", {"parse": "gateway"})], ids=str
)
def engines(request: pytest.FixtureRequest) -> Iterator[Two]:
    grammar, pool = request.param
    with two(grammar, pool=pool) as pair:
        yield pair


@pytest.fixture(
    scope="module", params=[("qwen3_coder", None), ("kimi_k2", None), ("qwen3_coder", {"parse": "gateway"})], ids=str
)
def strict(request: pytest.FixtureRequest) -> Iterator[Two]:
    """Models that think and write several tokens a step; calls go out as they grow, and no violation is delivered.

    What is not mended by resumes runs again with strict tools.
    """
    grammar, pool = request.param
    guard = {"mode": "strict", "arguments": "live", "escalate": "strict"}
    with two(grammar, thinking=True, per_chunk=3, pool=pool, **guard) as pair:
        yield pair


@pytest.fixture(scope="module")
def qwen() -> Iterator[Two]:
    with two() as pair:
        yield pair


def said(turn: Turn) -> Any:
    """An answer but for its ids and the space around its texts, in which engines' parsers and ours differ."""
    calls = [(call.name, json.loads(call.arguments)) for call in turn.calls]
    return turn.reasoning.strip(), turn.text.strip(), calls, turn.end


def resumed(engine: TokenModel) -> list[int]:
    """The tokens of prompt and answer with which each continuation began."""
    return [len(body["prompt"]) for path, body in engine.bodies if path == "/v1/completions"]


@pytest.mark.parametrize("kind", ["die", "lost", "abort"])
def test_a_stream_goes_on_where_its_engine_was_lost(engines: Two, kind: Any) -> None:
    length = len(engines.first.encode(engines.text))
    for at in range(1, length, 5):
        engines.say(engines.text, TokenFault(kind, at))
        got = engines.ask(stream=True, stream_options={"include_usage": True})
        assert said(got) == ("", "I will look. 好的", [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)], End.COMPLETE)
        assert got.faults == []
        # Charged once: what was kept is part of the answer, and neither of the prompt nor there twice.
        assert got.tokens == (len(SAID) + 1, length + 1)
        (begun,) = resumed(engines.second)
        assert at - 3 <= begun - len(SAID) - 1 <= at  # up to three bytes of a character are given up
        assert [each.verdict.counts for each in engines.judged] == [True, False]


def test_a_text_that_names_a_token_which_ends_turns_goes_on_behind_it(qwen: Two) -> None:
    prose = "Llama ends its turns with </s>"
    text = f"{prose}, I think.\n\n{qwen_call('plan_trip', **OTHERS)}"
    qwen.say(text, TokenFault("die", len(prose)))
    got = qwen.ask(stream=True)
    assert said(got) == ("", f"{prose}, I think.", [("plan_trip", OTHERS)], End.COMPLETE)
    assert resumed(qwen.second) == [len(SAID) + 1 + len(prose)]


# What spoils the first call of an answer, in Qwen's words, and the outcome that it is counted under.
_OPENED = QWEN.index("<parameter=days>")
DAMAGE = {
    "schema_mismatch": "<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>",
    "unknown_tool": "</function>\n</tool_call>\n" + qwen_call("plan_a_trip", city="Oslo", days=2),
    "truncated": "<parameter=days>\n3",
}


SOUND = len(TokenModel({}, "qwen3_coder", QWEN_MARKERS).encode(QWEN[:_OPENED]))  # what is before the damaged member


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("outcome", ["schema_mismatch", "truncated"])
def test_damage_in_a_call_is_cut_off_and_what_is_before_it_is_not_written_again(
    qwen: Two, outcome: str, stream: bool
) -> None:
    at = len(qwen.first.encode(QWEN[:_OPENED]))
    qwen.say(QWEN, TokenFault("damage", at, DAMAGE[outcome]))
    got = qwen.ask(stream=stream)
    assert said(got)[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert (got.faults, got.end) == ([], End.COMPLETE)
    assert [str(each.verdict.outcome) for each in qwen.judged] == [outcome, "clean"]
    (begun,) = resumed(qwen.second)
    assert begun - len(SAID) - 1 == (SOUND if outcome == "schema_mismatch" else at + len("<parameter=days>\n3"))


def test_a_call_after_a_sound_one_is_cut_off_alone(qwen: Two) -> None:
    second = QWEN.rindex("<tool_call>")
    wrong = qwen_call("plan_a_trip", city="Oslo", days=2)
    qwen.say(QWEN, TokenFault("damage", len(qwen.first.encode(QWEN[:second])), wrong))
    got = qwen.ask(stream=True)
    assert said(got)[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert [str(each.verdict.outcome) for each in qwen.judged] == ["unknown_tool", "clean"]
    (begun,) = resumed(qwen.second)
    assert begun - len(SAID) - 1 == len(qwen.first.encode(QWEN[:second]))


def test_a_leaked_marker_is_cut_off_and_the_text_before_it_stands(qwen: Two) -> None:
    at = QWEN.index("<tool_call>")
    leak = "</parameter>\n<function=get_weather>\n<parameter=city>\nOslo"
    qwen.say(QWEN, TokenFault("damage", len(qwen.first.encode(QWEN[:at])), leak))
    got = qwen.ask(stream=True)
    assert said(got) == ("", "I will look. 好的", [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)], End.COMPLETE)
    assert got.faults == []


LONG = "".join(f'line {number}: a < b "好"\n' for number in range(30))
FIRST, SECOND = ("get_weather", {"city": LONG, "days": 3}), ("plan_trip", OTHERS)
MADE = {"kimi_k2": kimi_calls(FIRST, SECOND), "hermes": hermes_calls(FIRST, SECOND)}


class Reported(NamedTuple):
    """Damage that somebody has reported.

    Attributes:
        grammar: Of the model.
        was: A part of the answer.
        became: What was seen in its place.
        again: At most so many tokens are written twice.
    """

    grammar: str
    was: str
    became: str
    again: int


REPORTED = {
    "opencode#20650, calls that run into one another": Reported(
        "kimi_k2", "}<|tool_call_end|><|tool_call_begin|>functions", '}\ufffd.functions.bash:1 {"command": 1}  } ]', 80
    ),
    "opencode#20650, a quotation mark too many": Reported("kimi_k2", '"days": 3', '"days": ", 3 "x', 80),
    "vllm#41739, a quotation mark that is not escaped": Reported("kimi_k2", '\\"\\nline 20', '"\\nline 20', 140),
    "vllm#47761, a string without an end": Reported("kimi_k2", '\\"\\n", "days": 3}', "", 80),
    "langchain-qwq#19, an argument that is missing": Reported("hermes", ', "days": 3', "", 120),
}


@pytest.fixture(scope="module", params=["held", "live"])
def pairs(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Two]]:
    with two("hermes", arguments=request.param) as hermes, two("kimi_k2", arguments=request.param) as kimi:
        yield {"hermes": hermes, "kimi_k2": kimi}


@pytest.mark.parametrize("case", REPORTED)
def test_reported_damage_of_a_long_call_is_mended_at_the_price_of_its_end(pairs: Mapping[str, Two], case: str) -> None:
    damage = REPORTED[case]
    pair, text = pairs[damage.grammar], MADE[damage.grammar]
    before, after = text.split(damage.was, 1)
    at = len(pair.first.encode(before))
    pair.say(text, TokenFault("damage", at, damage.became + after))
    got = pair.ask(stream=True)
    assert said(got)[2] == [FIRST, SECOND]
    assert (got.faults, got.end) == ([], End.COMPLETE)
    (begun,) = resumed(pair.second)
    assert at - (begun - len(SAID) - 1) <= damage.again


def misread(text: str, seen: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A parser that makes something else of a piece of arguments."""

    def of(delta: dict[str, Any]) -> dict[str, Any]:
        for call in delta.get("tool_calls") or ():
            if call["function"].get("arguments", "").startswith(text):
                call["function"]["arguments"] = seen
        return delta

    return of


@pytest.mark.parametrize(("text", "seen"), [("{", ""), ("}", "}}")], ids=["vllm#35266", "vllm#53638"])
def test_what_only_the_engines_parser_spoils_is_not_written_again(
    pairs: Mapping[str, Two], text: str, seen: str
) -> None:
    pair = pairs["hermes"]
    pair.say(MADE["hermes"])
    pair.first.misreads = misread(text, seen)
    try:
        got = pair.ask(stream=True)
    finally:
        pair.first.misreads = lambda delta: delta
    assert said(got)[2] == [FIRST, SECOND]
    assert [str(each.verdict.outcome) for each in pair.judged] == ["invalid_json", "clean"]
    assert len(resumed(pair.second)) == 1


def test_damage_that_comes_again_is_cut_further_back_and_then_the_request_runs_again(qwen: Two) -> None:
    at = len(qwen.first.encode(QWEN[:_OPENED]))
    begun = len(qwen.first.encode(QWEN[: QWEN.index("<tool_call>")]))
    worse = TokenFault("damage", at - begun, DAMAGE["schema_mismatch"])
    qwen.say(QWEN, TokenFault("damage", at, DAMAGE["schema_mismatch"]), then=[worse])
    got = qwen.ask(stream=True)
    assert said(got)[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert [str(each.verdict.outcome) for each in qwen.judged] == ["schema_mismatch", "schema_mismatch", "clean"]


def test_an_answer_that_breaks_again_at_the_same_place_ends_in_an_error(qwen: Two) -> None:
    nothing = [TokenFault("abort", 0)] * 4
    qwen.say(QWEN, TokenFault("die", 40), *nothing, then=nothing)
    assert qwen.ask(stream=True).end is End.ERROR
    assert len(qwen.judged) == 4  # two resumes and one rerun


def test_an_answer_that_grows_goes_on_whenever_its_engine_is_lost(qwen: Two) -> None:
    faults = [TokenFault("die", 40)] * 4
    qwen.say(QWEN, *faults, then=faults)
    assert said(qwen.ask(stream=True))[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert len(qwen.judged) > 4


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tool_choice": "required"}, "grammar"),
        ({"frequency_penalty": 0.5}, "sampling"),
        ({"seed": 1}, "sampling"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["look. 好的\n\nno"]}, "stop"),
        ({"include_reasoning": False}, "reasoning"),
        ({"bad_words": ["x"]}, "fields"),
    ],
)
def test_what_ids_alone_do_not_say_makes_a_rerun(qwen: Two, more: dict[str, Any], reason: str) -> None:
    qwen.say(QWEN, TokenFault("die", len("I will look. 好的".encode())))
    got = qwen.ask(stream=True, **more)
    assert said(got)[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert resumed(qwen.second) == []
    assert f'specgate_resumes_total{{model="m",outcome="rerun",reason="{reason}"}}' in metrics_of(qwen)


def test_resumes_are_counted_told_and_logged(qwen: Two) -> None:
    at = len(qwen.first.encode(QWEN[:_OPENED]))
    qwen.say(QWEN, TokenFault("damage", at, DAMAGE["schema_mismatch"]))
    status, headers, body = qwen.run(post(qwen.stack.url, asking(SAID)))
    kept = SOUND
    assert (status, headers["x-specgate-rerun"]) == (200, f"standard; resumed={kept}; from=speculative")
    assert json.loads(body)["specgate"] == {
        "rerun": "standard",
        "reasons": ["schema_mismatch"],
        "resumed": kept,
        "from": "speculative",
    }
    assert 'specgate_resumes_total{model="m",outcome="sound",reason="schema_mismatch"}' in metrics_of(qwen)


class _Metered(NullCharge):
    """A charge whose meters measure."""

    counts = True

    def __init__(self) -> None:
        self.meters: list[Meter] = []

    def attempt(
        self, pool: str, speculative: bool, ids: TokenIds | None = None, kept: KeptPrefix | None = None
    ) -> Meter:
        self.meters.append(Meter(pool, speculative, ids, kept))
        return self.meters[-1]


class _Accounts(NullAccounts):
    def __init__(self) -> None:
        self.charge = _Metered()

    async def admit(self, *_: Any, **__: Any) -> NullCharge:
        return self.charge


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_charged_is_the_whole_answer_once(stream: bool) -> None:
    accounts, length = _Accounts(), len(TokenModel({}, "qwen3_coder", QWEN_MARKERS).encode(QWEN))
    at = len(TokenModel({}, "qwen3_coder", QWEN_MARKERS).encode(QWEN[:_OPENED]))
    fault = TokenFault("damage", at, DAMAGE["schema_mismatch"])
    pair = [TokenModel({SAID: QWEN}, "qwen3_coder", QWEN_MARKERS, faults) for faults in ([fault], [])]
    async with resuming(*pair, accounts=accounts) as (stack, _):
        turn = await asked(stack.url, "chat", SAID, stream=stream)
    assert turn.end is End.COMPLETE
    assert resumed(pair[1])
    assert accounts.charge.meters[-1].usage == Usage(len(SAID) + 1, 0, length + 1)
    assert turn.tokens is None if stream else turn.tokens == (len(SAID) + 1, length + 1)


def test_an_engine_without_ids_is_rerun() -> None:
    with two(tells_ids=False) as pair:
        pair.say(QWEN, TokenFault("die", 60))
        assert said(pair.ask(stream=True))[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
        assert resumed(pair.second) == []


@pytest.mark.parametrize("pool", [{}, {"parse": "gateway"}], ids=str)
def test_sglang_is_asked_for_no_ids_and_rerun(pool: Mapping[str, Any]) -> None:
    with two(pool={**pool, "facts": {"engine": "sglang", "method": "none"}}) as pair:
        pair.say(QWEN, TokenFault("die", 60))
        assert said(pair.ask(stream=True))[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
        assert not any("return_token_ids" in body for _, body in (*pair.first.bodies, *pair.second.bodies))
        assert 'specgate_resumes_total{model="m",outcome="rerun",reason="engine"}' in metrics_of(pair)


def test_off_asks_for_no_ids() -> None:
    with two(resume="off") as pair:
        pair.say(QWEN, TokenFault("die", 60))
        assert said(pair.ask(stream=True))[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
        assert resumed(pair.second) == []
        assert not any("return_token_ids" in body for _, body in pair.first.bodies)


def test_a_chat_stream_that_waits_for_a_check_is_not_silent(qwen: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "KEEP_ALIVE_S", 0.001)
    qwen.say(QWEN, pause_s=0.002)
    _, _, body = qwen.run(post(qwen.stack.url, asking(SAID, stream=True)))
    frames = body.split(b"\n\n")
    opened = next(place for place, frame in enumerate(frames) if b'"tool_calls"' in frame)
    assert b": waiting" in frames[:opened]
    assert all(frame.startswith((b"data: ", b": waiting")) for frame in frames if frame)


WORDS = st.sampled_from(["I ", "will ", "look. ", "好的 ", "a < b ", "`x` ", "\n\n", "{} ", "🙂", "é "])
PROSE = st.lists(WORDS, max_size=6).map("".join)
CITIES = st.text(
    st.characters(codec="utf-8", exclude_characters="<>&", exclude_categories=["C", "Z"]), min_size=2, max_size=6
)
NOTES = st.lists(PROSE.map(str.strip).filter(bool), max_size=2)
VALUES = st.fixed_dictionaries({"city": CITIES, "days": st.integers(1, 9)}, optional={"notes": NOTES})
CALLS = st.lists(st.tuples(st.sampled_from([tool["function"]["name"] for tool in TOOLS]), VALUES), max_size=3)
KINDS = st.sampled_from(["die", "lost", "abort", "stop", "damage"])
JUNK = st.sampled_from(["<tool_call>", "</think>", '{"city": 1', "\n</function>\n", "<parameter=", "tool", "好"])
FAULTS = st.lists(st.builds(TokenFault, KINDS, st.integers(0, 160), JUNK), max_size=2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(thought=PROSE, prose=PROSE, calls=CALLS, faults=FAULTS, then=FAULTS)
def test_whatever_breaks_a_client_has_a_valid_answer_or_an_error(
    strict: Two, api: str, stream: bool, thought: str, prose: str, calls: Any, faults: Any, then: Any
) -> None:
    written = "\n".join(qwen_call(name, **arguments) for name, arguments in calls)
    if strict.text is KIMI:
        written = kimi_calls(*calls) if calls else ""
    text = f"{thought}</think>\n\n{prose}{written}"
    strict.say(text)
    meant = strict.ask(api, stream=stream)
    strict.say(text, *faults, then=then)
    got = strict.ask(api, stream=stream)
    assert got.faults == []
    for call in got.calls if got.end is End.COMPLETE else ():
        jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(json.loads(call.arguments))
    lost = all(fault.kind in LOST for fault in (*faults, *then))
    if lost and got.end is not End.ERROR and meant.end is not End.ERROR:
        assert said(got) == said(meant)


LOST = ("die", "lost", "abort")
COUNTED = {True: (*LOST, "stop"), False: ("abort", "stop", "damage")}  # faults whose tokens are known, if it streams


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[Two, Accounts]]:
    accounts = Accounts(RateLimitsConfig(), connect(None, None))
    with two(per_chunk=2, accounts=accounts) as pair:
        yield pair, accounts


@pytest.mark.parametrize("stream", [True, False])
@settings(max_examples=4 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), prose=PROSE, calls=CALLS)
def test_every_token_of_an_engine_is_charged_once_to_the_client_or_to_the_platform(
    counted: tuple[Two, Accounts], stream: bool, data: st.DataObject, prose: str, calls: Any
) -> None:
    pair, accounts = counted
    faults = st.lists(st.builds(TokenFault, st.sampled_from(COUNTED[stream]), st.integers(0, 160), JUNK), max_size=3)
    text, wrong, then = (
        prose + "\n".join(qwen_call(name, **said) for name, said in calls),
        data.draw(faults),
        data.draw(faults),
    )
    pair.say(text, *wrong, then=then)
    pair.first.worked = pair.second.worked = 0
    turn = pair.ask(stream=stream)
    while not (sums := list(accounts.tally.take().values())):
        time.sleep(0)  # it is settled right behind the last byte
    (usage,) = sums
    assert usage.input + usage.output + usage.rerun == pair.first.worked + pair.second.worked
    if turn.end is not End.ERROR and all(fault.kind in LOST for fault in (*wrong, *then)):
        assert (usage.input, usage.output) == (len(SAID) + 1, len(pair.first.encode(text)) + 1)


def metrics_of(pair: Two) -> str:
    return pair.telemetry.metrics.exposition().decode()


@pytest.fixture(scope="module")
def plain() -> Iterator[Two]:
    with two(thinking=True, per_chunk=2) as pair:
        yield pair


PLAIN = "Let me think: 好的</think>\n\nThe answer is 42. 🙂\n\n- a < b\n- `x`\n"


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_a_plain_stream_goes_on_when_its_engine_is_lost(plain: Two, api: str) -> None:
    usage = {"stream_options": {"include_usage": True}} if api == "chat" else {}
    plain.say(PLAIN)
    meant = plain.ask(api, stream=True, tools=None, **usage)
    assert (meant.end, meant.faults) == (End.COMPLETE, [])
    for at in range(0, len(plain.first.encode(PLAIN)), 3):  # at 0 nothing is out: then the request runs again
        plain.say(PLAIN, TokenFault("die", at), then=[TokenFault("abort", 20)])
        got = plain.ask(api, stream=True, tools=None, **usage)
        assert (said(got), got.tokens, got.faults) == (said(meant), meant.tokens, []), at
        assert len(resumed(plain.second)) >= (at > 0)
    assert not any("return_token_ids" in body for engine in plain[:2] for _, body in engine.bodies)


def test_nobody_is_told_of_usage_who_has_not_asked(plain: Two) -> None:
    plain.say(PLAIN, TokenFault("lost", 30))
    assert plain.ask(stream=True, tools=None).tokens is None


def test_a_plain_stream_is_one_stream_whoever_writes_it(plain: Two) -> None:
    plain.say(PLAIN, TokenFault("die", 40))
    _, _, body = plain.run(post(plain.stack.url, asking(SAID, stream=True, tools=None)))
    *chunks, last = chunks_in(body)
    assert last == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == len({chunk["created"] for chunk in chunks}) == 1
    assert [choice.get("finish_reason") for chunk in chunks for choice in chunk["choices"]].count("stop") == 1
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1


@pytest.mark.parametrize("as_ids", [True, False])
def test_a_text_completion_goes_on_when_its_engine_is_lost(plain: Two, as_ids: bool) -> None:
    prompt = SAID + PROMPT_END
    asked = {
        "model": "m",
        "prompt": plain.first.encode(prompt) if as_ids else prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = "The answer is 42. 🙂\n- a < b\n"
    for at in range(0, 30, 3):
        plain.say(answer, TokenFault("die", at), then=[TokenFault("lost", 5)])
        _, _, body = plain.run(post(plain.stack.url, asked, "/v1/completions"))
        *chunks, last = chunks_in(body)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        assert last == "[DONE]"
        assert "".join(choice["text"] for choice in choices) == answer
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
        (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        assert usage["completion_tokens"] == len(answer.encode()) + 1
        assert usage["prompt_tokens"] == len(SAID) + 1


@pytest.mark.parametrize("more", [{"frequency_penalty": 0.5}, {"seed": 3, "temperature": 1}, {"max_tokens": 60}])
def test_a_plain_stream_goes_on_with_what_would_not_be_exact(plain: Two, more: dict[str, Any]) -> None:
    plain.say(PLAIN, TokenFault("die", 40))
    assert plain.ask(stream=True, tools=None, **more).end in (End.COMPLETE, End.CUT)
    (sent,) = [body for path, body in plain.second.bodies if path == "/v1/completions"]
    for name, value in more.items():
        assert sent[name] == (value if name != "max_tokens" else value - 40)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"include_reasoning": False}, "reasoning"),
        ({"bad_words": ["x"]}, "fields"),
        ({"return_token_ids": True}, "fields"),
        ({"stop": ["a < bc"]}, "stop"),
    ],
)
def test_what_a_text_does_not_say_ends_a_plain_stream(plain: Two, more: dict[str, Any], reason: str) -> None:
    plain.say(PLAIN, TokenFault("die", len(PLAIN[: PLAIN.index(" b\n")].encode()) - 7))  # `</think>` is one token
    status, _, body = plain.run(post(plain.stack.url, asking(SAID, stream=True, tools=None, **more)))
    assert status == 200
    assert b'"error"' in body
    assert b"[DONE]" not in body
    assert f'specgate_resumes_total{{model="m",outcome="error",reason="{reason}"}}' in metrics_of(plain)


def test_a_plain_stream_that_nobody_goes_on_with_ends_in_an_error(plain: Two) -> None:
    plain.say(PLAIN, *[TokenFault("die", 1)] * 9, then=[TokenFault("die", 1)] * 9)
    assert plain.ask(stream=True, tools=None).end is End.ERROR
    assert 'specgate_resumes_total{model="m",outcome="error",reason="resumed"}' in metrics_of(plain)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("tools", [True, False])
def test_a_stream_whose_engine_stalls_goes_on_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tools: bool, together: bool
) -> None:
    monkeypatch.setattr(stalls, "TICK_S", 0.01)
    with two(stall_s=0.2, together=together) as pair:
        pair.say(QWEN, TokenFault("hang", 60))
        got = pair.ask(stream=True, **({} if tools else {"tools": None}))
        assert (got.end, got.faults) == (End.COMPLETE, [])
        assert len(resumed(pair.second)) == 1
        assert 'specgate_stalled_streams_total{model="m",outcome="given_up"} 1.0' in metrics_of(pair)
        pair.run(until(lambda: pair.first.gone == 1))  # the engine was told


def test_a_plain_answer_of_which_nothing_is_out_runs_again(plain: Two) -> None:
    plain.say(PLAIN, TokenFault("die", 30))
    assert plain.ask(stream=False, tools=None).end is End.COMPLETE


def test_guarded_alone_lets_plain_streams_end_where_they_broke() -> None:
    with two(resume="guarded") as pair:
        pair.say(QWEN, TokenFault("die", 30))
        assert pair.ask(stream=True, tools=None).end is End.ERROR
        pair.say(QWEN, TokenFault("die", 30))
        assert pair.ask(stream=True).end is End.COMPLETE


@pytest.mark.parametrize("grammar", ["none", "harmony"])
def test_reasoning_that_nobody_knows_how_to_write_is_not_gone_on_with(grammar: str) -> None:
    with two(thinking=True, configured=grammar) as pair:
        pair.say(PLAIN, TokenFault("die", 40))
        assert pair.ask(stream=True, tools=None).end is End.ERROR
        assert 'specgate_resumes_total{model="m",outcome="error",reason="reasoning"}' in metrics_of(pair)


def test_an_engine_of_which_nothing_is_known_is_asked_to_go_on_with_a_plain_stream() -> None:
    with two(pool={"facts": {}}) as pair:
        pair.say("Some words, and more.", TokenFault("die", 10))
        assert pair.ask(stream=True, tools=None).text == "Some words, and more."


def test_text_of_a_model_that_nobody_knows_is_gone_on_with() -> None:
    with two(configured="none") as pair:
        pair.say("Some words, and more.", TokenFault("die", 10))
        assert pair.ask(stream=True, tools=None).text == "Some words, and more."


def test_a_resume_that_fails_is_a_rerun(qwen: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(resume, "continuation", fails)
    qwen.say(QWEN, TokenFault("die", 60))
    assert said(qwen.ask(stream=True))[2] == [("get_weather", ARGUMENTS), ("plan_trip", OTHERS)]
    assert 'specgate_resumes_total{model="m",outcome="rerun",reason="fault"}' in metrics_of(qwen)
