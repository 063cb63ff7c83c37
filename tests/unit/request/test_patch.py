"""The body an engine gets: the client's bytes, but for what the gateway changes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.errors import InvalidRequestError
from serve.guard.core.expectation import Expectation, LazyRequest
from serve.request.completion import CompletionRequest, parse
from serve.request.patch import OPT_OUT, REPORT, BodyPatch, ReasoningField, add_xargs, ask_usage, wants_usage

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
# Fields that the gateway does not read may hold anything.
MEMBERS = st.dictionaries(st.text().filter(lambda key: key not in CompletionRequest.__struct_fields__), VALUES)
NAMES: tuple[ReasoningField, ...] = ("reasoning", "reasoning_content")


def patched(body: bytes, xargs: dict[str, int] | None = None, drop: tuple[str, ...] = ()) -> bytes:
    patch = BodyPatch()
    patch.drop(drop)
    if xargs:
        add_xargs(patch, parse(body), xargs)
    return patch.apply(body)


def renamed(body: bytes, name: ReasoningField) -> bytes:
    patch = BodyPatch()
    patch.name_reasoning(name)
    return patch.apply(body)


@given(MEMBERS)
def test_a_body_that_nothing_changes_is_the_very_same(members: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **members}).encode()
    assert not BodyPatch()
    assert BodyPatch().apply(body) is body
    patch = BodyPatch()
    patch.drop(("enable_speculative",), ("stream",))
    patch.name_reasoning("reasoning")
    assert patch.apply(body) is body


@given(MEMBERS, st.sampled_from([None, 2]))
def test_a_member_that_is_added_comes_first_and_all_else_keeps_its_bytes(
    members: dict[str, Any], indent: int | None
) -> None:
    body = json.dumps({"model": "m", **members}, indent=indent).encode()
    assert patched(body, OPT_OUT) == b'{"vllm_xargs":{"enable_speculative":0},' + body[1:]


@given(MEMBERS)
def test_the_parts_of_a_body_to_which_members_are_added_are_views_of_it(members: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **members}).encode()
    patch = BodyPatch()
    patch.add("a", b"1")
    patch.add("b", b"2")
    parts = patch.parts(body)
    assert b"".join(parts) == patch.apply(body)
    assert sum(len(part) for part in parts if isinstance(part, memoryview) and part.obj is body) == len(body)


@given(MEMBERS)
def test_members_keep_their_order_and_values_their_bytes(members: dict[str, Any]) -> None:
    body = {"a": 1.50, "model": "theirs", **members, "enable_speculative": False, "n": None, "z": [1]}
    patch = BodyPatch()
    patch.drop(("enable_speculative",), ("n", "z"))
    patch.set("model", b'"ours"')
    patch.set("new", b"0")
    left = {name: value for name, value in body.items() if name not in ("enable_speculative", "n")}
    expected = {**left, "model": "ours", "new": 0}
    sent = patch.apply(json.dumps(body).encode())
    assert json.loads(sent) == expected
    assert list(json.loads(sent)) == list(expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": 1e3, "drop": 1 , "b" : [ 1.0 ]}', b'{"a":1e3,"b":[ 1.0 ]}'),
        (b'{"drop":1}', b"{}"),
        (b'{ "dr\\u006fp":{"drop":2}, "a":{"drop": 3} }', b'{"a":{"drop": 3}}'),
    ],
)
def test_only_the_member_itself_goes(body: bytes, expected: bytes) -> None:
    assert patched(body, drop=("drop",)) == expected


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ({"a": 1}, {"a": 1, "enable_speculative": 0}),
        ({"enable_speculative": 1}, {"enable_speculative": 0}),
        (None, {"enable_speculative": 0}),
        ({}, {"enable_speculative": 0}),
    ],
)
def test_vllm_xargs_of_the_client_are_kept_beside_the_opt_out(theirs: Any, expected: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "vllm_xargs": theirs, "x": 1.50}).encode()
    assert json.loads(patched(body, OPT_OUT)) == {"model": "m", "vllm_xargs": expected, "x": 1.5}


def test_several_words_to_the_engine_go_together() -> None:
    sent = json.loads(patched(b'{"model":"m"}', OPT_OUT | REPORT))
    assert sent == {"model": "m", "vllm_xargs": {"enable_speculative": 0, "specgate_violations": 1}}


def test_what_is_dropped_may_be_added_anew() -> None:
    patch = BodyPatch()
    patch.drop(("vllm_xargs",))
    patch.add("vllm_xargs", b"{}")
    assert patch.apply(b'{"model":"m","vllm_xargs":{"a":1}}') == b'{"vllm_xargs":{},"model":"m"}'
    assert patch.apply(b'{"vllm_xargs":1}') == b'{"vllm_xargs":{}}'


def test_a_copy_is_changed_alone() -> None:
    patch = BodyPatch()
    patch.set("model", b'"a"')
    other = patch.copy()
    other.set("model", b'"b"')
    other.drop(("x",))
    other.add("y", b"1")
    assert patch.apply(b'{"model":"m","x":1}') == b'{"model":"a","x":1}'
    assert other.apply(b'{"model":"m","x":1}') == b'{"y":1,"model":"b"}'


@pytest.mark.parametrize(
    ("options", "wants"),
    [
        ("null", False),
        ("{}", False),  # which vLLM takes for a yes, and OpenAI for a no
        ('{"include_usage":null}', False),
        ('{"include_usage":false}', False),
        ('{"include_usage":0}', False),
        ('{"include_usage":"false"}', False),
        ('{"include_usage":[true]}', False),
        ('{"include_usage":true}', True),
        ('{"include_usage":1}', True),
        ('{"include_usage":"True"}', True),
    ],
)
def test_gateway_and_guard_agree_on_whether_a_stream_is_to_tell_its_usage(options: str, wants: bool) -> None:
    """`"false"` was a yes to the guard, and 1 a no to whoever counts."""
    asked = parse(f'{{"model":"m","stream":true,"stream_options":{options}}}'.encode())
    assert wants_usage(asked) is wants
    assert Expectation(LazyRequest(asked)).wants_usage is wants


def test_a_whole_answer_tells_its_usage() -> None:
    assert wants_usage(parse(b'{"model":"m","stream_options":{"include_usage":false}}'))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (..., {"include_usage": True}),
        (None, {"include_usage": True}),
        ({"x": 1, "continuous_usage_stats": True}, {"x": 1, "include_usage": True}),
    ],
)
def test_a_stream_is_asked_for_its_usage(options: Any, expected: Any) -> None:
    members = {} if options is ... else {"stream_options": options}
    body = json.dumps({"model": "m", "stream": True, **members}).encode()
    patch = BodyPatch()
    patch.drop((), ("stream_options",))
    ask_usage(patch, parse(body))
    assert json.loads(patch.apply(body)) == {"model": "m", "stream": True, "stream_options": expected}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sent", NAMES)
def test_reasoning_has_the_name_that_the_engine_reads(name: ReasoningField, sent: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", sent: "hm"}]}
    [question, answer] = json.loads(renamed(json.dumps(body).encode(), name))["messages"]
    assert question == {"role": "user", "content": "a"}
    assert answer == {"role": "assistant", name: "hm"}


def test_a_message_with_both_keeps_both() -> None:
    body = json.dumps({"messages": [{"role": "assistant", "reasoning": "one", "reasoning_content": "two"}]}).encode()
    assert renamed(body, "reasoning") is body


SAID = st.sampled_from([None, "", "one", "two"])


@given(st.permutations(NAMES), SAID, SAID)
def test_reasoning_is_never_lost_beside_an_empty_twin(
    names: list[ReasoningField], wanted: str | None, twin: str | None
) -> None:
    name, other = names
    message = {"role": "assistant", name: wanted, other: twin}
    [sent] = json.loads(renamed(json.dumps({"messages": [message]}).encode(), name))["messages"]
    assert (sent[name] or "") == (wanted or twin or "")
    assert (sent.get(other) or "") == ((twin or "") if wanted or not twin else "")


@pytest.mark.parametrize(
    "body", [b'{"prompt":"\\"reasoning\\""}', b'{"messages":"reasoning"}', b'{"messages":[1,"reasoning"]}']
)
def test_what_holds_no_messages_is_left_alone(body: bytes) -> None:
    assert renamed(body, "reasoning_content") is body


@given(st.dictionaries(st.text(), st.integers()), st.floats(allow_nan=False, allow_infinity=False))
def test_every_other_value_stays_as_it_was_sent(members: dict[str, int], number: float) -> None:
    message = {"role": "assistant", "reasoning": "hm", "tool_calls": [members]}
    body = {"temperature": number, "messages": [message], "reasoning": members}
    given = json.loads(renamed(json.dumps(body).encode(), "reasoning_content"))
    message["reasoning_content"] = message.pop("reasoning")
    assert given == body


def test_messages_that_were_repaired_are_renamed_too() -> None:
    patch = BodyPatch()
    patch.set("messages", b'[{"role":"assistant","reasoning":"hm"}]')
    patch.name_reasoning("reasoning_content")
    sent = json.loads(patch.apply(b'{"messages":[]}'))
    assert sent == {"messages": [{"role": "assistant", "reasoning_content": "hm"}]}


def test_a_name_that_is_no_text_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        patched(b'{"model":"m","\xff":1,"drop":1}', drop=("drop",))


@given(st.sampled_from(["x", "天", '"', "\\", "\n"]), st.booleans())
@settings(max_examples=5, deadline=None)
def test_a_long_body_gets_the_changes_that_a_short_one_gets(unit: str, ascii_only: bool) -> None:
    text = unit * (9_000_000 // len(json.dumps(unit, ensure_ascii=ascii_only)[1:-1]))
    message = {"role": "assistant", "content": text, "reasoning": text[:5_000]}
    body = {"model": "m", "drop": text[:2_000], "x": [text[:2_000]], "messages": [message], "stop": None}
    patch = BodyPatch()
    patch.set("model", b'"n"')
    patch.drop(["drop"], ["stop"])
    patch.add("seed", b"1")
    patch.name_reasoning("reasoning_content")
    changed = {"role": "assistant", "content": text, "reasoning_content": text[:5_000]}
    whole = json.dumps(body, ensure_ascii=ascii_only).encode()
    given = json.loads(patch.apply(whole))
    assert given == {"seed": 1, "model": "n", "x": [text[:2_000]], "messages": [changed]}
    unchanged = BodyPatch()
    unchanged.drop(["absent"])
    assert unchanged.apply(whole) is whole
