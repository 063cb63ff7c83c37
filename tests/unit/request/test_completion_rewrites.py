"""The body an engine gets: the client's bytes less our field, plus the opt-out where it is needed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.request.completion import OPT_OUT, REPORT, CompletionRequest, parse, with_xargs, without_members

OWN = {"enable_speculative"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)

# Fields that the gateway does not read may hold anything.
MEMBERS = st.dictionaries(st.text().filter(lambda key: key not in CompletionRequest.__struct_fields__), VALUES)


def engine_body(body: bytes, xargs: dict[str, int]) -> bytes:
    return with_xargs(without_members(body, OWN), parse(body), xargs)


@given(MEMBERS)
def test_a_body_without_our_field_is_not_touched(members: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **members}).encode()
    assert without_members(body, OWN) is body


@given(MEMBERS)
def test_the_opt_out_adds_one_member_and_changes_no_other(members: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **members, "enable_speculative": False}).encode()
    sent = json.loads(engine_body(body, OPT_OUT))
    assert sent == {"model": "m", **members, "vllm_xargs": {"enable_speculative": 0}}


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
    sent = json.loads(engine_body(body, OPT_OUT))
    assert sent == {"model": "m", "vllm_xargs": expected, "x": 1.5}


def test_several_words_to_the_engine_go_together() -> None:
    body = b'{"model":"m"}'
    sent = json.loads(engine_body(body, OPT_OUT | REPORT))
    assert sent == {"model": "m", "vllm_xargs": {"enable_speculative": 0, "specgate_violations": 1}}
