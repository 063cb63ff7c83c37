"""Log-probabilities and token ids: all that the engine sent, in order, with what they belong to; of a rerun only those
of what the client gets."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import ENVELOPE, TOOLS, json_request, read, through, tools_request

from lab.sim import SimSettings
from lab.sim.generation import Generation
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState
from serve.guard.core.chunk import joined, of_last_characters

GOOD = '{"city": "Bern", "days": 2}'


def entries(*tokens: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]}


def chunk(delta: Mapping[str, Any], *tokens: str, reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": entries(*tokens) if tokens else None, "finish_reason": reason}
    return {**ENVELOPE, "choices": [choice | ({"token_ids": [len(token) for token in tokens]} if tokens else {})]}


def opening(name: str, index: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": f"i{index}", "type": "function", "function": function}]}


def more(arguments: str, index: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def tokens_in(chunks: Iterable[Mapping[str, Any]], index: int = 0) -> list[str]:
    """The tokens of one choice; the ids must say the same."""
    found: list[str] = []
    ids: list[int] = []
    for each in chunks:
        for choice in each.get("choices", ()):
            if choice["index"] == index:
                found += [entry["token"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
                ids += choice.get("token_ids") or ()
    assert ids == list(map(len, found))
    return found


def carriers(chunks: Iterable[Mapping[str, Any]]) -> list[tuple[list[str], str]]:
    """What goes out with which tokens."""
    return [(tokens_in([each]), json.dumps(each["choices"][0]["delta"])) for each in chunks]


CALL = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "I look"}, "I", " look"),
    chunk({}, "<tool_call>"),
    chunk(opening("get_weather"), "<function=get_weather>"),
    chunk(more('{"city": "B'), '{"city"', ': "B'),
    chunk(more('ern", "days": 2}'), "ern", '", "days"', ": 2}"),
    chunk({}, "</tool_call>"),
    chunk({}, "<eos>", reason="tool_calls"),
]


def test_the_tokens_of_a_call_come_with_the_call_and_those_after_it_at_the_end() -> None:
    sent = through(Guard(GuardConfig(), tools_request()), CALL)
    assert tokens_in(sent) == tokens_in(CALL)
    by_tokens = [(tokens, delta) for tokens, delta in carriers(sent) if tokens]
    assert by_tokens[0] == (["I", " look"], '{"content": "I look"}')
    assert by_tokens[1][0] == tokens_in(CALL[2:6])
    assert "get_weather" in by_tokens[1][1]
    assert by_tokens[2] == (["</tool_call>", "<eos>"], "{}")


def test_the_tokens_of_two_calls_come_each_with_its_own() -> None:
    second = [chunk(opening("plan_trip", 1), "second"), chunk(more(GOOD, 1), "args")]
    sent = through(Guard(GuardConfig(), tools_request()), [*CALL[:-1], *second, CALL[-1]])
    owners = {tokens[-1]: delta for tokens, delta in carriers(sent) if tokens}
    assert "get_weather" in owners[": 2}"]
    assert "plan_trip" in owners["args"]
    assert tokens_in(sent) == [*tokens_in(CALL[:-1]), "second", "args", "<eos>"]


def test_a_rerun_sends_the_tokens_of_its_own_calls_and_none_of_the_broken_ones() -> None:
    broken = [*CALL[:5], chunk(more("}}"), "}}"), CALL[-1]]
    guard = Guard(GuardConfig(), tools_request())
    sent = through(guard, broken, CALL)
    assert guard.state is GuardState.DONE
    assert tokens_in(sent) == tokens_in(CALL), "text went out once, from the first attempt"


def test_a_rerun_that_goes_on_in_the_middle_of_a_chunk_sends_the_tokens_of_what_is_new() -> None:
    first = [chunk({"content": "one two"}, "one", " two"), {**ENVELOPE, "error": {"message": "died"}}]
    second = [
        chunk({"content": "one"}, "one"),
        chunk({"content": " two three"}, " two", " three"),
        chunk({}, "<eos>", reason="stop"),
    ]
    sent = through(Guard(GuardConfig(), tools_request()), first, second)
    assert read(sent)["content"] == "one two three"
    assert tokens_in(sent) == ["one", " two", " three", "<eos>"]


@pytest.mark.parametrize("calls", [False, True])
def test_the_tokens_of_a_text_that_differs_come_only_if_the_text_does(calls: bool) -> None:
    first = [chunk({"content": "one"}, "one"), {**ENVELOPE, "error": {"message": "died"}}]
    second = [chunk({"content": "another"}, "another"), *(CALL[3:] if calls else [chunk({}, "<eos>", reason="stop")])]
    sent = through(Guard(GuardConfig(), tools_request()), first, second)
    expected = ["one", *(tokens_in(CALL[3:]) if calls else ["another", "<eos>"])]
    assert tokens_in(sent) == expected
    assert ("another" in read(sent)["content"]) is not calls


def test_the_tokens_of_a_call_that_length_cut_are_not_lost() -> None:
    cut = [*CALL[:5], chunk({}, "x", reason="length")]
    sent = through(Guard(GuardConfig(), tools_request()), cut)
    assert read(sent)["calls"] == []
    assert tokens_in(sent) == tokens_in(cut)


def test_the_tokens_of_leaked_markup_come_with_the_rescued_call() -> None:
    leak = f'<tool_call>{{"name": "get_weather", "arguments": {GOOD}}}</tool_call>'
    stream = [chunk({"content": "Hm. "}, "Hm. "), chunk({"content": leak}, "leak"), chunk({}, "<eos>", reason="stop")]
    sent = through(Guard(GuardConfig(), tools_request()), stream)
    assert len(read(sent)["calls"]) == 1
    assert tokens_in(sent) == ["Hm. ", "leak", "<eos>"]


def tokenised(body: Mapping[str, Any], pool: SimSettings, index: int) -> list[dict[str, Any]]:
    """A stream of one choice in which every chunk has a token or two, and some chunks have nothing but tokens."""
    stream = []
    for number, delta in enumerate(Generation(body, pool).deltas()):
        names = [f"{index}.{number}.{part}" for part in range(1 + number % 2)]
        stream.append(chunk(delta, *names, index=index))
    return [*stream, chunk({}, f"{index}.eos", reason="stop", index=index)]


@given(
    st.integers(0, 500),
    st.sampled_from(["kimi_k2", "qwen3_coder", "hermes"]),
    st.sampled_from(["tools", "json_schema", "json_object", "held json"]),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_every_tokens_details_arrive_in_order(seed: int, grammar: Any, kind: str, n: int, drafts: int) -> None:
    body = {
        "tools": tools_request(seed),
        "json_schema": json_request(seed),
        "held json": json_request(seed),
        "json_object": json_request(seed) | {"response_format": {"type": "json_object"}},
    }[kind]
    pool = SimSettings(grammar=grammar, num_speculative_tokens=drafts, thinking=bool(seed % 2))
    streams = [tokenised({**body, "seed": seed + index}, pool, index) for index in range(n)]
    mixed = [each for row in zip(*streams, strict=False) for each in row]
    shortest = min(map(len, streams))
    mixed += [each for stream in streams for each in stream[shortest:]]
    guard = Guard(GuardConfig(hold_json=kind == "held json"), body)
    sent = through(guard, mixed)
    assert guard.state is GuardState.DONE
    for index in range(n):
        assert tokens_in(sent, index) == tokens_in(mixed, index)


@pytest.mark.parametrize("odd", [1, "x", [1], {"content": 3}, {"content": [1, None]}, {"content": None}, [[]], {}])
def test_odd_details_harm_nobody(odd: Any) -> None:
    def with_odd(each: dict[str, Any]) -> dict[str, Any]:
        return {**each, "choices": [{**each["choices"][0], "logprobs": odd, "token_ids": odd}]}

    for attempts in ([CALL], [[*CALL[:4], {"error": {}}], CALL]):
        sent = through(
            Guard(GuardConfig(), tools_request()), *[list(map(with_odd, each[:-1])) + each[-1:] for each in attempts]
        )
        assert read(sent)["calls"][0]["name"] in {tool["function"]["name"] for tool in TOOLS}


def test_details_are_joined_member_by_member() -> None:
    one = {"logprobs": {"content": [1], "refusal": None}, "token_ids": [5]}
    two = {"logprobs": {"content": [2], "refusal": [3]}, "token_ids": [6]}
    assert joined([one, two]) == {"logprobs": {"content": [1, 2], "refusal": [3]}, "token_ids": [5, 6]}
    assert one["logprobs"] == {"content": [1], "refusal": None}


@pytest.mark.parametrize(("count", "left"), [(0, []), (1, ["c"]), (3, ["c"]), (4, ["b", "c"]), (99, ["aaa", "b", "c"])])
def test_only_the_tokens_of_the_last_characters_are_left(count: int, left: list[str]) -> None:
    details = {"logprobs": entries("aaa", "b", "c  "), "token_ids": [1, 2, 3]}
    got = of_last_characters(details, count)
    assert [entry["token"].strip() for entry in got["logprobs"]["content"]] == left
    assert got["token_ids"] == [1, 2, 3][3 - len(left) :]
