"""Where a broken answer is cut: behind what the client has, before what is damaged."""

from typing import Any

import pytest

from serve.guard.core import Outcome
from serve.guard.cut import CUTS, Cut, Had, boundaries, joined
from serve.parsing import StreamParser

CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
KIMI_CALL = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
TOOLS = [{"name": "f", "parameters": {"type": "object"}}]


def place(text: str, cut: Cut, call: int = 0, grammar: str = "qwen3_coder", **had: Any) -> str | None:
    """What is kept of a text."""
    found = boundaries(StreamParser(grammar, TOOLS), text, Had(**had)).place(cut, call)
    return None if found is None else text[:found]


def test_a_call_is_cut_off_at_its_first_character() -> None:
    assert place(f"Hi. {CALL}", Cut.CALL, content="Hi. ") == "Hi. "
    assert place(f"Hi. {CALL}\n{CALL}", Cut.CALL, 1, content="Hi. ", calls=("f",)) == f"Hi. {CALL}\n"
    section = f"Hi.<|tool_calls_section_begin|>{KIMI_CALL}{KIMI_CALL}"
    assert place(section, Cut.CALL, 0, "kimi_k2") == "Hi.<|tool_calls_section_begin|>"
    assert place(section, Cut.CALL, 1, "kimi_k2") == f"Hi.<|tool_calls_section_begin|>{KIMI_CALL}"


def test_the_second_cut_is_at_the_boundary_before() -> None:
    section = f"Hi.<|tool_calls_section_begin|>{KIMI_CALL}"
    assert place(section, Cut.BEFORE, 0, "kimi_k2", content="Hi.") == "Hi."
    assert place(f"Hi. {CALL}", Cut.BEFORE, content="Hi. ") is None  # the client is there already


def test_no_cut_is_before_what_the_client_has() -> None:
    assert place(f"Hi. {CALL}", Cut.CALL, content="Hi. And more") is None
    assert place(f"{CALL}\n{CALL}", Cut.CALL, 0, calls=("f",)) is None


def test_a_leak_is_cut_off_where_the_client_is() -> None:
    assert place("Hi there.</parameter> and so on", Cut.CLIENT, content="Hi there.") == "Hi there."


def test_a_call_that_only_the_engine_sees_is_not_cut_off() -> None:
    assert place("Hi. <tool_call>", Cut.CALL, content="Hi. ") is None


def test_every_outcome_that_is_cut_is_cut_further_back_the_second_time() -> None:
    assert set(CUTS) == {
        Outcome.FAILED, Outcome.TRUNCATED, Outcome.INVALID_JSON, Outcome.SCHEMA_MISMATCH, Outcome.UNKNOWN_TOOL,
        Outcome.MARKER_LEAK,
    }  # fmt: skip
    depth = [Cut.END, Cut.CLIENT, Cut.CALL, Cut.BEFORE]
    for outcome, (first, second) in CUTS.items():
        assert depth.index(second) > depth.index(first) or outcome is Outcome.FAILED


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
    assert joined(had, text) == both


def test_what_is_held_back_is_no_contradiction() -> None:
    assert joined("Hi <to", "Hi ", "<tool") == "Hi "
