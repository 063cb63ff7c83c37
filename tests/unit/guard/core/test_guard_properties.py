"""The promise, under random faults: nothing broken leaves, nothing is lost, nothing is doubled, no rerun in vain."""

import json
from collections import Counter
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.guard_harness import (
    TOOL_PARAMETERS,
    TOOLS,
    calls_of,
    chunks_of,
    healed,
    json_request,
    read,
    through,
    tools_request,
)
from support.guard_stack import config

from lab.sim import FAULTS, SimSettings
from lab.sim.generation import Generation
from serve.config.gateway import GatewayConfig
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome
from serve.guard.core.client_view import ClientView, ReadyCall
from serve.guard.core.expectation import LazyRequest
from serve.guard.core.markup import MARKUP
from serve.request.body_reader import RequestReader

TEXT_FAULTS = sorted(name for name, fault in FAULTS.items() if fault.edit)
GRAMMARS = ("kimi_k2", "qwen3_coder", "hermes")
NAMES = {tool["function"]["name"] for tool in TOOLS}


def faulty(rate: float, grammar: str, seed: int = 0) -> SimSettings:
    rates = {name: rate / len(TEXT_FAULTS) for name in TEXT_FAULTS}
    return SimSettings(grammar=grammar, seed=seed, num_speculative_tokens=3, faults=rates)  # type: ignore[arg-type]


def assert_valid(message: dict[str, Any]) -> None:
    for name, arguments in calls_of(message):
        assert name in NAMES
        jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(arguments)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5])
def test_with_any_fault_rate_the_client_has_what_the_model_meant(rate: float, grammar: str) -> None:
    pool, standard = faulty(rate, grammar), faulty(0, grammar)
    faults = healings = 0
    for seed in range(250):
        body = tools_request(seed, tool_choice="required")
        sent, guard = healed(body, pool, standard)
        message, meant = read(sent), read(chunks_of(body, standard))
        assert_valid(message)
        assert calls_of(message) == calls_of(meant)
        assert message["content"] == meant["content"]
        assert message["finish"] == ["tool_calls"]
        faults += Generation(body, pool).fault is not None
        healings += guard.outcome in (Outcome.RERUN, Outcome.RESCUED)
    assert healings == faults


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_rerun_that_differs_loses_no_call_and_doubles_none(grammar: str) -> None:
    pool, standard = faulty(0.5, grammar), faulty(0, grammar, seed=1)
    for seed in range(300):
        body = tools_request(seed, tool_choice="required")
        sent, guard = healed(body, pool, standard)
        message = read(sent)
        assert_valid(message)
        if guard.outcome is Outcome.RERUN:
            have = Counter(name for name, _ in calls_of(message))
            rerun = Counter(name for name, _ in calls_of(read(chunks_of(body, standard))))
            began = Counter(name for name, _ in meant_calls(body, grammar))
            assert rerun <= have <= rerun | began


def meant_calls(body: dict[str, Any], grammar: str) -> list[tuple[str, Any]]:
    return calls_of(read(chunks_of(body, faulty(0, grammar))))


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_behind_our_own_parser_no_call_is_lost_where_it_reports_what_it_could_not_read(grammar: str) -> None:
    rates = {name: 1 / len(TEXT_FAULTS) for name in TEXT_FAULTS}
    pool = SimSettings(grammar=grammar, parser="specgate", num_speculative_tokens=3, faults=rates)  # type: ignore[arg-type]
    for seed in range(150):
        body = tools_request(seed, tool_choice="required", vllm_xargs={"specgate_violations": 1})
        sent, _ = healed(body, pool, faulty(0, grammar))
        message, meant = read(sent), read(chunks_of(body, faulty(0, grammar)))
        assert sorted(map(str, calls_of(message))) == sorted(map(str, calls_of(meant)))


def test_broken_on_both_pools_ends_in_an_error_and_never_in_a_broken_call() -> None:
    pool = SimSettings(faults={"truncated_string": 0.5, "double_brace": 0.5})
    for seed in range(200):
        sent, guard = healed(tools_request(seed, tool_choice="required"), pool, pool)
        message = read(sent)
        assert message["error"]["code"] == "integrity_violation"
        assert guard.state is GuardState.FAILED
        assert_valid(message)


@pytest.mark.parametrize("hold", [True, False])
def test_json_answers_under_faults_are_the_document_that_was_meant(hold: bool) -> None:
    pool, standard = faulty(0.5, "kimi_k2"), faulty(0, "kimi_k2")
    for seed in range(200):
        body = json_request(seed)
        sent, _ = healed(body, pool, standard, settings=GuardConfig(hold_json=hold))
        assert read(sent)["content"] == read(chunks_of(body, standard))["content"]


@given(st.integers(0, 10_000), st.sampled_from(GRAMMARS), st.data())
def test_what_leaves_does_not_depend_on_how_the_deltas_were_cut(seed: int, grammar: str, data: st.DataObject) -> None:
    body = tools_request(seed)
    finals = set()
    for drafts in (0, data.draw(st.integers(1, 9))):
        pool = SimSettings(
            grammar=grammar,  # type: ignore[arg-type]
            num_speculative_tokens=drafts,
            acceptance=(0.9,),
            faults={name: 1 / len(TEXT_FAULTS) for name in TEXT_FAULTS},
        )
        guard = Guard(GuardConfig(reruns=0), body)
        message = read(through(guard, chunks_of(body, pool)))
        finals.add((message["content"], str(calls_of(message)), str(message["finish"]), guard.verdicts[0].outcome))
    assert len(finals) == 1


READER = RequestReader(GatewayConfig.parse(config()).requests)
TEXTS = st.text(st.characters(), max_size=30) | st.sampled_from(
    [r"C:\users\me", r"\u", r"PS1='\u@\h'", r"\\u00e9", "\ufffd", "\ud83d", "<tool_call>", "</think>", '"\\/', "\\"]
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(TEXTS, min_size=1, max_size=4), VALUES, st.booleans(), st.randoms(use_true_random=False), TEXTS)
def test_any_request_and_any_sound_answer_pass_unchanged(
    texts: list[str], value: Any, ascii_only: bool, rng: Random, said: str
) -> None:
    messages = [{"role": "user", "content": text, "name": value} for text in texts]
    function = {"name": "f", "description": texts[0], "parameters": {"type": "object", "description": texts[-1]}}
    members = [("model", "m"), ("messages", messages), ("tools", [{"type": "function", "function": function}])]
    rng.shuffle(members)
    sent = json.dumps(dict(members), ensure_ascii=ascii_only).encode("utf-8", "replace")
    arguments = json.dumps({"a": said.encode("utf-8", "replace").decode()}, ensure_ascii=ascii_only)
    assume(MARKUP.search(arguments) is None and "\ufffd" not in arguments)
    _, request, _ = READER.read(sent)
    guard = Guard(GuardConfig(), LazyRequest(request))
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    envelope = {"id": "x", "created": 1, "model": "m"}
    choices = [{"index": 0, "delta": {"tool_calls": [call]}}, {"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
    chunks = [{**envelope, "choices": [{"finish_reason": None} | choice]} for choice in choices]
    message = read(through(guard, chunks))
    assert guard.outcome is Outcome.CLEAN
    assert [each["arguments"] for each in message["calls"]] == [arguments]


NAMED = st.builds(lambda name, value: ReadyCall("", name, str(value), value), st.sampled_from("abc"), st.integers(0, 2))


@given(st.lists(NAMED, max_size=5), st.lists(NAMED, max_size=5))
def test_calls_of_two_attempts_become_one_list_by_name(first: list[ReadyCall], second: list[ReadyCall]) -> None:
    view = ClientView("seed", 0)
    sent = [step for call in first for step in view.feed_call(call)]
    view.restart()
    sent += [step for call in second for step in view.feed_call(call)]
    sent += view.finish()
    opened = [entry for step in sent for entry in step.delta["tool_calls"] if "id" in entry]
    assert [entry["index"] for entry in opened] == list(range(len(opened)))
    assert len({entry["id"] for entry in opened}) == len(opened)
    names = Counter(entry["function"]["name"] for entry in opened)
    assert names == Counter(call.name for call in first) | Counter(call.name for call in second)


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 2**32))
def test_text_of_a_rerun_is_continued_or_follows_as_a_paragraph_but_is_never_repeated(
    first: str, second: str, seed: int
) -> None:
    def pieces(text: str) -> list[str]:
        rng, made = Random(seed), []
        while text:
            size = rng.randint(1, len(text))
            made.append(text[:size])
            text = text[size:]
        return made

    view = ClientView("seed", 0)
    sent = "".join(view.feed_text("content", piece) for piece in pieces(first))
    view.restart()
    sent += "".join(view.feed_text("content", piece) for piece in pieces(second))
    sent += "".join(step.delta["content"] for step in view.finish())
    if second.startswith(first):
        assert sent == second
    elif not second.strip() or (first.startswith(second) and not first[len(second) :].strip()):
        assert sent == first
    else:
        assert sent == f"{first}\n\n{second}"


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.just("stop"),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["index", "delta", "tool_calls", "function", "name", "arguments", "id", "finish_reason",
                         "content", "choices", "usage", "tools", "tool_choice", "messages", "response_format", "type",
                         "json_schema", "schema", "parameters", "strict", "role"]),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(["messages", "tools", "tool_choice", "response_format"]), ODD),
    st.lists(ODD),
    st.data(),
)
def test_no_shape_of_request_or_chunk_makes_the_guard_raise_or_keep_silent(
    body: dict[str, Any], deltas: list[Any], data: st.DataObject
) -> None:
    guard = Guard(GuardConfig(reruns=0), body)
    sent = []
    for delta in deltas:
        odd_choice = data.draw(st.booleans())
        choice = (
            delta
            if odd_choice
            else {"index": 0, "delta": delta, "finish_reason": data.draw(st.sampled_from([None, "stop"]))}
        )
        sent += guard.feed({"id": "x", "created": 1, "model": "m", "choices": [choice]})
    sent += guard.finish()
    if guard.state is not GuardState.DONE:
        sent += guard.give_up()
    assert sent
    assert "error" in sent[-1] or sent[-1]["choices"][0]["finish_reason"]
