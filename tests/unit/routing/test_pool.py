"""Requests that share a place on a sticky pool's ring."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import RequestFeatures
from serve.request.completion import parse
from serve.request.features import SESSION_HEADERS, features_of
from serve.routing.pool import session_key
from serve.routing.ray_pool import hint, read_hint


def key(headers: dict[str, str] | None = None, **body: Any) -> str:
    headers = headers or {}
    request = parse(json.dumps({"model": "m", **body}).encode())
    return session_key(features_of(request, headers))


FIRST = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Mend the build."}]
LATER = [*FIRST, {"role": "assistant", "content": "How?"}, {"role": "user", "content": "As you like."}]


def test_the_turns_of_a_conversation_have_one_key() -> None:
    assert key(messages=FIRST) == key(messages=LATER, temperature=1, tools=[])


def test_conversations_that_begin_otherwise_have_others() -> None:
    other_user = [FIRST[0], {"role": "user", "content": "Write a poem."}]
    other_system = [{"role": "system", "content": "You are a poet."}, FIRST[1]]
    assert len({key(messages=said) for said in (FIRST, other_user, other_system)}) == 3


def test_the_clients_word_outweighs_the_text_and_the_header_outweighs_the_body() -> None:
    other: Any = [{"role": "user", "content": "other"}]
    assert key(messages=FIRST, prompt_cache_key="a") == key(messages=other, prompt_cache_key="a")
    header = {"x-session-id": "s"}
    assert key(header, messages=FIRST, prompt_cache_key="a") == key(header, messages=other, prompt_cache_key="b")


def test_one_user_has_many_conversations() -> None:
    assert key(messages=FIRST, user="u") == key(messages=FIRST, user="v")


@given(wanted=st.from_regex(r"[!-~]*", fullmatch=True), avoid=st.frozensets(st.from_regex(r"[!-~]+", fullmatch=True)))
def test_a_wish_is_read_as_it_was_written(wanted: str, avoid: frozenset[str]) -> None:
    assert read_hint(hint(wanted, avoid)) == (wanted, avoid)


@given(said=st.text(alphabet=st.characters(), max_size=5000))
def test_a_key_is_short_ascii_whatever_the_client_sends(said: str) -> None:
    assert len(session_key(RequestFeatures("m", conversation_key=said)).encode("ascii")) == 16


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_the_ids_that_agents_send_keep_their_turns_together(name: str) -> None:
    assert key({name: "s"}, messages=FIRST) == key({"x-session-id": "s"}, messages=LATER[2:])
    assert key({name: ""}, messages=FIRST) == key(messages=FIRST)
