"""What another engine writes behind an answer that broke makes one answer with it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_stack import chunks_in

from serve.http1.sse import encode_frame
from serve.parsing import StreamParser
from serve.stream.line import Line
from serve.stream.splice import TURN_ENDS, ChatSplice, Had, kept_prefix, spliced

KEPT = "Hi "


def splice() -> ChatSplice:
    parser = StreamParser("qwen3_coder", calls=False)
    return ChatSplice(kept_prefix(parser, Had(content=KEPT), KEPT, 1, 1))


def continued(pieces: Sequence[str], reason: str | None) -> tuple[str, Any]:
    """The text and the finish reason of the answer that goes on with some pieces, of which the last one ends it."""
    last = len(pieces) - 1
    choices = [
        {"index": 0, "text": text, "finish_reason": reason if n == last else None} for n, text in enumerate(pieces)
    ]
    line = Line((splice(),))
    sent = b"".join(line.feed(encode_frame({"id": "c", "choices": [choice]})) for choice in choices) + line.finish()
    got = [choice for chunk in chunks_in(sent) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in got), got[-1]["finish_reason"]


@given(end=st.sampled_from(TURN_ENDS), cuts=st.lists(st.integers(0, 30), max_size=4))
def test_the_token_that_ends_a_turn_is_no_text_however_it_arrives(end: str, cuts: list[int]) -> None:
    text = f"there.{end}"
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [text[begin:stop] for begin, stop in pairwise(places)]
    assert continued(pieces, "stop") == ("Hi there.", "stop")
    assert continued([*pieces, ""], "stop") == ("Hi there.", "stop")
    whole = {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
    answer = json.loads(splice().whole(json.dumps(whole).encode()))
    assert answer["choices"][0]["message"]["content"] == "Hi there."


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        (["a <", "|im", " b"], "stop"),
        (["a </s>", " b"], "stop"),
        (["a <|im_end|"], "stop"),
        (["a <|im_end|>"], "length"),
        (["a <", ""], "length"),
    ],
)
def test_what_only_looks_like_the_end_of_a_turn_is_text(pieces: list[str], reason: str) -> None:
    assert continued(pieces, reason) == (KEPT + "".join(pieces), reason)


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"error": {}}', 100_000 * b"[" + 100_000 * b"]"])
def test_a_body_that_is_no_completion_passes_to_whoever_judges_it(body: bytes) -> None:
    assert splice().whole(body) == body


@pytest.mark.parametrize(
    ("had", "text", "both"),
    [
        ("", "Hi", "Hi"),
        ("Hi th", "Hi there", "Hi there"),
        ("\n\nHi th", "Hi there", "\n\nHi there"),
        ("Hi there.\n", "Hi there.", "Hi there."),
        ("Hi there", "Hi", None),
        ("\n\n", "", "\n\n"),
        ("Hi you", "Hi there", None),
        ("<think>Hm", "", None),
    ],
)
def test_a_text_goes_on_where_the_client_is_but_for_the_space_before_it(had: str, text: str, both: str | None) -> None:
    assert spliced(had, text) == both


def test_what_is_held_back_is_no_contradiction() -> None:
    assert spliced("Hi <to", "Hi ", "<tool") == "Hi "
