"""Calls that go out while they grow: what the client has is the same in the end, or ends in an error."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guard_harness import TOOL_PARAMETERS, call, calls, chunk, chunks_of, read, through, tools_request

from lab.sim import FAULTS, SimSettings
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome

TEXT_FAULTS = sorted(name for name, fault in FAULTS.items() if fault.edit)
FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"enum": ["new", "add"]}},
    "required": ["path", "content"],
    "additionalProperties": False,
}
WRITE = {"type": "function", "function": {"name": "write", "parameters": FILE}}
BODY = {"messages": [{"role": "user", "content": "Write it."}], "tools": [WRITE]}
CODE = json.dumps({"path": "a.html", "content": "<div class='x'>\n  <p>if a < b && c</p>\n</div>\n" * 400})


def streamed(*arguments: str, size: int = 4, reason: str | None = "tool_calls") -> list[dict[str, Any]]:
    """Calls of an engine, their arguments in pieces."""
    chunks = [chunk({"role": "assistant", "content": ""})]
    for index, text in enumerate(arguments):
        chunks.append(chunk(calls(call(index, "write", ""))))
        chunks += [chunk(more(index, text[at : at + size])) for at in range(0, len(text), size)]
    return [*chunks, chunk({}, reason)] if reason else chunks


def more(index: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def answered(*attempts: Sequence[dict[str, Any]], live: bool = True, **settings: Any) -> tuple[dict[str, Any], Guard]:
    guard = Guard(GuardConfig(**settings), BODY, live=live)
    return read(through(guard, *attempts)), guard


def arguments_in(message: dict[str, Any]) -> list[str]:
    return [call["arguments"] for call in message["calls"]]


@pytest.mark.parametrize("size", [1, 4, 50])
def test_a_long_call_is_never_silent_for_long_and_is_the_same_as_one_that_is_held(size: int) -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    chunks = streamed(CODE, size=size)
    sent: list[dict[str, Any]] = []
    silent = longest = 0
    for each in chunks:
        out = guard.feed(each)
        silent = 0 if out else silent + 1
        longest = max(longest, silent)
        sent += out
    sent += guard.finish()
    assert longest < 50, "at 50 tokens a second, more than a second"
    held, _ = answered(chunks, live=False)
    assert read(sent) == held
    assert guard.outcome is Outcome.CLEAN


def test_the_end_of_a_call_goes_out_only_once_it_is_judged() -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = [out for each in streamed(CODE, reason=None) for out in guard.feed(each)]
    assert 0 < len(CODE) - len(arguments_in(read(sent))[0]) < 150
    sent += [*guard.feed(chunk({}, "tool_calls")), *guard.finish()]
    assert arguments_in(read(sent)) == [CODE]


def test_the_chunk_that_begins_a_live_call_says_so() -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = through(guard, streamed(CODE))
    assert [each["specgate"] for each in sent if "specgate" in each] == [{"arguments": "live"}]


def test_several_calls_go_out_one_after_the_other_while_they_grow() -> None:
    texts = [CODE, '{"path": "b", "content": ""}', CODE]
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = []
    for number, each in enumerate(streamed(*texts)):
        sent += guard.feed(each)
        if number % 500 == 0:
            assert all(json.loads(arguments) for arguments in arguments_in(read(sent))[:-1])
    sent += guard.finish()
    assert arguments_in(read(sent)) == texts


WRONG = {
    "another mode": '{"mode": "old", "path": "a", "content": "b"}',
    "a member too many": '{"path": "a", "user": "root", "content": "b"}',
    "a list for a text": '{"path": ["a"], "content": "b"}',
    "a member too few": '{"path": "a"}',
    "not JSON": '{"path": "a" "content"}',
    "the end of a call": '{"path": "a.txt</parameter>", "content": "b"}',
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_nothing_goes_out_of_what_makes_a_call_wrong(arguments: str) -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    sent: list[dict[str, Any]] = []
    for each in streamed(arguments, size=1):
        sent += guard.feed(each)
    received = arguments_in(read(sent))[0]
    assert arguments.startswith(received)
    for end in ("}", '"}', '", "content": ""}', ', "content": ""}', '"path": "", "content": ""}'):
        try:
            value = json.loads(received + end)
        except ValueError:
            continue
        if jsonschema.Draft202012Validator(FILE).is_valid(value):
            return
    raise AssertionError(received)


def test_a_rerun_that_continues_what_went_out_is_joined_to_it() -> None:
    cut = streamed(CODE[:5000], reason=None)
    message, guard = answered(cut, streamed(CODE))
    assert arguments_in(message) == [CODE]
    assert message["finish"] == ["tool_calls"]
    assert guard.outcome is Outcome.RERUN


@pytest.mark.parametrize("other", [CODE.replace("div", "pre"), '{"path": "a.html"}', ""])
def test_a_rerun_that_contradicts_what_went_out_ends_in_an_error(other: str) -> None:
    message, guard = answered(streamed(CODE[:5000], reason=None), streamed(other) if other else [chunk({}, "stop")])
    assert message["error"]["code"] == "integrity_violation"
    assert message["finish"] == []
    assert guard.state is GuardState.FAILED
    assert not guard.verdicts[-1].counts


def test_of_two_reruns_the_second_may_continue_where_the_first_contradicts() -> None:
    cut = streamed(CODE[:5000], reason=None)
    message, _ = answered(cut, streamed(CODE.replace("div", "pre")), streamed(CODE), reruns=2)
    assert arguments_in(message) == [CODE]


def test_a_call_that_the_length_cut_stays_unfinished_as_the_reason_says() -> None:
    message, guard = answered(streamed(CODE[:1500], reason="length"))
    assert CODE.startswith(arguments_in(message)[0])
    assert message["finish"] == ["length"]
    assert not guard.verdicts[0].counts


def test_a_call_behind_one_that_the_length_cut_has_a_place_of_its_own() -> None:
    whole = json.dumps({"path": "b", "content": ""})
    begun = streamed(CODE[:5000], reason=None)
    message, _ = answered([*begun, chunk(calls(call(1, "write", whole))), chunk({}, "length")])
    first, second = arguments_in(message)
    assert CODE.startswith(first)
    assert second == whole
    assert len({each["id"] for each in message["calls"]}) == 2


def test_a_call_that_a_stop_of_the_request_cut_ends_in_an_error() -> None:
    last = chunk({}, "stop")
    last["choices"][0]["stop_reason"] = "</div>"
    guard = Guard(GuardConfig(reruns=0), {**BODY, "stop": ["</div>"]}, live=True)
    message = read(through(guard, [*streamed(CODE[:5000], reason=None), last]))
    assert message["error"]["code"] == "integrity_violation"


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/no"}, {"type": "object", "maxProperties": 9}, {"not": {}}])
def test_where_the_schema_says_nothing_of_beginnings_the_call_is_held(schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "write", "parameters": schema}}
    guard = Guard(GuardConfig(), {**BODY, "tools": [tool]}, live=True)
    sent = [out for each in streamed(CODE, reason=None) for out in guard.feed(each)]
    assert read(sent)["calls"] == []


def test_a_second_call_where_one_is_allowed_costs_no_more_than_held() -> None:
    body = {**BODY, "parallel_tool_calls": False}
    guard = Guard(GuardConfig(), body, live=True)
    message = read(through(guard, streamed(CODE, CODE), streamed(CODE)))
    assert arguments_in(message) == [CODE]
    assert guard.outcome is Outcome.RERUN


def test_details_of_tokens_come_with_their_call_and_all_of_them() -> None:
    pieces = streamed(CODE[:-1] + "}", size=40)
    for number, each in enumerate(pieces):
        each["choices"][0]["token_ids"] = [number]
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = through(guard, pieces)
    assert arguments_in(read(sent)) == [CODE]
    ids = [token for each in sent for token in each["choices"][0].get("token_ids") or ()]
    assert ids == [*range(len(pieces))]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["kimi_k2", "qwen3_coder", "hermes"]), st.integers(0, 9))
def test_under_any_fault_the_client_has_what_is_valid_or_an_error(seed: int, grammar: str, drafts: int) -> None:
    body = tools_request(seed, tool_choice="required")
    faults = {name: 0.5 / len(TEXT_FAULTS) for name in TEXT_FAULTS}
    sound = SimSettings(grammar=grammar, num_speculative_tokens=drafts)  # type: ignore[arg-type]
    broken = SimSettings(grammar=grammar, num_speculative_tokens=drafts, faults=faults)  # type: ignore[arg-type]
    for first, second in ((sound, sound), (broken, sound), (broken, broken)):
        attempts = [chunks_of(body, pool, f"chatcmpl-{n}") for n, pool in enumerate((first, second))]
        guard = Guard(GuardConfig(), body, live=True)
        message = read(through(guard, *attempts))
        held = read(through(Guard(GuardConfig(), body), *attempts))
        if guard.outcome in (Outcome.CLEAN, Outcome.RERUN, Outcome.RESCUED):
            assert [each["arguments"] for each in message["calls"]] == [each["arguments"] for each in held["calls"]]
            for each in message["calls"]:
                jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(json.loads(each["arguments"]))
        if first is sound:
            assert message == held


def test_a_rerun_goes_on_live_from_where_the_first_attempt_broke_off() -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = through_first(guard, streamed('{"path": "a", "content": "b"}', CODE[:5000], reason=None))
    guard.restart("standard")
    silent = longest = 0
    for each in streamed('{"path": "a", "content": "b"}', CODE):
        out = guard.feed(each)
        silent = 0 if out or len(arguments_in(read(sent))[1]) < 5000 else silent + 1
        longest = max(longest, silent)
        sent += out
    sent += guard.finish()
    assert arguments_in(read(sent)) == ['{"path": "a", "content": "b"}', CODE]
    assert longest < 50


def through_first(guard: Guard, chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what goes out of an attempt whose stream ends."""
    return [*(out for each in chunks for out in guard.feed(each)), *guard.finish()]


def test_a_rerun_that_contradicts_is_given_up_as_soon_as_that_shows() -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    through_first(guard, streamed(CODE[:5000], reason=None))
    guard.restart("standard")
    read_chunks = 0
    for each in streamed(CODE.replace("div", "pre")):
        guard.feed(each)
        read_chunks += 1
        if guard.state is not GuardState.OPEN:
            break
    assert read_chunks < 100
    assert guard.state is GuardState.FAILED


def test_a_rerun_of_which_nothing_has_gone_out_is_live_as_well() -> None:
    guard = Guard(GuardConfig(), BODY, live=True)
    sent = through_first(guard, [chunk({"role": "assistant", "content": ""})])
    guard.restart("standard")
    sent += [out for each in streamed(CODE, reason=None) for out in guard.feed(each)]
    assert len(arguments_in(read(sent))[0]) > len(CODE) - 150
    sent += [*guard.feed(chunk({}, "tool_calls")), *guard.finish()]
    assert arguments_in(read(sent)) == [CODE]


LOOSE = {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}}
TORN = (
    '{"command=ls": ""}',  # as in vllm-project/vllm#56077
    '{"command": "ls", "timeout=5": ""}',
    '{"command\\">ls": ""}',
    '{" command": "ls"}',
    '{"command\\n": "ls"}',
    '{"Command": "ls"}',
    '{"arguments": {"command": "ls"}}',
    '{"command": "ls", "echo $A\\n</parameter": ""}',  # as in vllm-project/vllm#55497
    '{"parameter name=\\"command\\"": "ls"}',
    '{"command": "ls</command>"}',
    '{"command": "ls</command"}',
    '{"command": "ls<parameter=timeout>5"}',  # as in anthropics/claude-code#83088, and as other formats write it
    '{"command": "ls<parameter name=\\"timeout\\">5"}',
    '{"command": "ls<arg_key>timeout</arg_key><arg_value>5"}',
    '{"command": "ls", "command": "ls -l"}',  # clients take the last, and some of them neither
    '{"command": "ls", "env": {}, "c\\u006fmmand": "ls"}',
)
WHOLE = (
    '{"command": "ls", "cwd": "/tmp"}',
    '{"command": "echo \'<command>ls</command>"}',
    '{"command": "grep \'</command>\' a.xml"}',
    '{"input": {"command": "ls"}, "command": "ls", "timeout": 5}',
    '{"command": "grep \'<parameter=timeout>5</parameter>\'"}',
    '{"command": "grep \'<parameter=path>\'"}',
    '{"command": "grep \'<parameter=timeout>\'", "timeout": 5}',
    '{"": "ls"}',
    '{"a<b": "ls", "env": {"<think>": "", "parameter=a": "b"}}',
    '{"command": "a: b", "env": {"command": "ls", "a": [{"b": 1}, {"b": 2}]}, "timeout": 5}',
)


def run(arguments: str, parameters: Any, *, live: bool) -> tuple[Guard, list[dict[str, Any]]]:
    body = {**BODY, "tools": [{"type": "function", "function": {"name": "write", "parameters": parameters}}]}
    guard = Guard(GuardConfig(), body, live=live)
    return guard, through_first(guard, streamed(arguments, size=3))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("arguments", TORN)
def test_what_damage_left_of_a_key_runs_again_where_the_schema_allows_any(arguments: str, live: bool) -> None:
    guard, sent = run(arguments, LOOSE, live=live)
    assert guard.state is GuardState.RERUN
    guard.restart("standard")
    sent += through_first(guard, streamed('{"command": "ls"}', size=3))
    assert arguments_in(read(sent)) == ['{"command": "ls"}']
    again, sent = run(arguments, LOOSE, live=live)
    again.restart("standard")  # the model means it
    sent += through_first(again, streamed(arguments, size=3))
    assert arguments_in(read(sent)) == [arguments]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("arguments", WHOLE)
def test_a_key_that_is_like_none_is_nobodys_damage(arguments: str, live: bool) -> None:
    guard, sent = run(arguments, LOOSE, live=live)
    assert (guard.outcome, arguments_in(read(sent))) == (Outcome.CLEAN, [arguments])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("more", [{"additionalProperties": True}, {"additionalProperties": {"type": "string"}}])
def test_where_a_schema_asks_for_any_key_none_is_torn(more: dict[str, Any], live: bool) -> None:
    guard, _ = run('{"command=ls": "", "Command": "ls"}', {**LOOSE, **more}, live=live)
    assert guard.outcome is Outcome.CLEAN


def raw(arguments: str) -> str:
    """Arguments with the tabs and ends of lines of their strings as they are, as models copy them from files."""
    return arguments.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")


@given(
    st.fixed_dictionaries({"path": st.text("a\n\t", max_size=9), "content": st.text("a<\n\r\t\"'", max_size=99)}),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 3, 40, 9999]),
    st.booleans(),
)
def test_tabs_and_ends_of_lines_in_a_string_reach_the_client_as_escapes(
    value: dict[str, str], indent: int | None, size: int, live: bool
) -> None:
    arguments = json.dumps(value, indent=indent)
    message, guard = answered(streamed(raw(arguments), arguments, size=size), live=live, reruns=0)
    assert arguments_in(message) == [arguments, arguments]
    assert guard.outcome is (Outcome.CLEAN if raw(arguments) == arguments else Outcome.RESCUED)


def test_a_raw_end_of_a_line_is_damage_where_rescue_is_off_or_where_it_ends_the_string() -> None:
    _, guard = answered(streamed(raw(CODE)), rescue=False, reruns=0)
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON
    _, guard = answered(streamed('{"path": "a.py,\n "content": "b"}'), reruns=0)
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON


def test_edits_as_a_text_with_raw_ends_of_lines_become_a_list() -> None:
    tool = {"name": "edit", "parameters": {"type": "object", "properties": {"edits": {"type": "array"}}}}
    edits = [{"old": "a\n\tb", "new": '"'}]
    arguments = json.dumps({"edits": raw(json.dumps(edits))})
    guard = Guard(GuardConfig(reruns=0), {"messages": [], "tools": [{"type": "function", "function": tool}]})
    message = read(through(guard, [chunk(calls(call(0, "edit", arguments))), chunk({}, "tool_calls")]))
    assert json.loads(arguments_in(message)[0]) == {"edits": edits}
