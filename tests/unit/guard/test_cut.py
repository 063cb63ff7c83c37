"""Where a broken answer is cut: behind what the client has, before what is damaged."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.guard_harness import TOOLS as DECLARED
from support.tokens import kimi_calls, qwen_call

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, Outcome
from serve.guard.cut import CUTS, CUTS_IN_CALLS, GIVEN_UP, Cut, boundaries, cuts_of, kept_of
from serve.parsing import StreamParser
from serve.stream.splice import Had

CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
KIMI_CALL = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
TOOLS = [{"name": "f", "parameters": {"type": "object"}}]
OURS = [tool["function"] for tool in DECLARED]


def place(text: str, cut: Cut, call: int = 0, grammar: str = "qwen3_coder", **had: Any) -> str | None:
    """What is kept of a text."""
    sound = Guard(GuardConfig(), {"messages": [], "tools": DECLARED}).sound_part
    found = boundaries(StreamParser(grammar, [*TOOLS, *OURS]), text, Had(**had)).place(cut, call, sound)
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


def test_a_leak_is_cut_off_and_the_sound_calls_before_it_are_kept() -> None:
    assert place("Hi there.</parameter> and so on", Cut.TEXT, content="Hi there.") == "Hi there."
    two = f"Hi.{CALL}{CALL}"
    assert place(f"{two}\n</parameter> and", Cut.TEXT, content="Hi.") == two.removesuffix("</tool_call>")


def test_a_leak_that_the_client_is_past_is_not_cut_off() -> None:
    assert place(f"Hi.<tool_call>\n<oops>{CALL}", Cut.TEXT, content="Hi.", calls=("f",)) is None


@pytest.mark.parametrize(
    ("sound", "damage", "kept"),
    [
        ('{"city": "Oslo"', ', "days": "many"}', '{"city": "Oslo"'),
        ('{"city": "Oslo", "days": ', "many}", '{"city": "Oslo"'),
        ('{"city": "Os', '\ufffdlo", "days": 2}', ""),
        ('{"city": "Oslo", "notes": ["a", "b', '\ufffd"]}', '{"city": "Oslo", "notes": ["a"'),
        ('{"city": "' + 100 * "x", '\ufffd", "days": 2}', '{"city": "' + (100 - GIVEN_UP) * "x"),
        ('{"city": "a, {b}\\"", "days": 2', ", }", '{"city": "a, {b}\\"", "days": 2'),
        ("", "{{}", ""),
    ],
)
def test_a_damaged_member_goes_and_of_a_long_one_the_last_characters(sound: str, damage: str, kept: str) -> None:
    assert (sound + damage)[: kept_of(sound + damage, len(sound))] == kept


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder"])
def test_of_a_call_that_only_the_engines_parser_has_spoilt_all_is_kept(grammar: str) -> None:
    call = ("plan_trip", {"city": "Oslo", "days": 2})
    text = kimi_calls(call) if grammar == "kimi_k2" else qwen_call("plan_trip", city="Oslo", days=2)
    assert place(text, Cut.SOUND, grammar=grammar) == text
    assert place(text.replace("2", '"many"'), Cut.SOUND, grammar=grammar) != text


JUNK = st.sampled_from(["\ufffd", '"', "}", "{", "<|tool_call_end|>", "</tool_call>", "x"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>&◁", exclude_categories=["C", "Z"]), min_size=2)
CALLS = st.lists(
    st.tuples(
        st.sampled_from([tool["function"]["name"] for tool in DECLARED]),
        st.fixed_dictionaries({"city": TEXTS, "days": st.integers(1, 9)}, optional={"notes": st.lists(TEXTS)}),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=20, deadline=None)
@given(calls=CALLS, kimi=st.booleans(), data=st.data())
def test_what_is_kept_of_a_damaged_call_begins_a_right_one(calls: Any, kimi: bool, data: Any) -> None:
    grammar = "kimi_k2" if kimi else "qwen3_coder"
    text = kimi_calls(*calls) if kimi else "\n".join(qwen_call(name, **arguments) for name, arguments in calls)
    at = data.draw(st.integers(1, len(text)))
    damaged = text[:at] + data.draw(JUNK)
    sound = Guard(GuardConfig(), {"messages": [], "tools": DECLARED}).sound_part
    found = boundaries(StreamParser(grammar, OURS), damaged, Had())
    for call, written in enumerate(found.calls):
        place = found.place(Cut.SOUND, call, sound)
        if place is None or written.unfinished:
            continue
        if written.ended and sound(written.name, written.arguments) == written.length:
            assert place == len(damaged)  # nothing is wrong with this one
            continue
        kept = boundaries(StreamParser(grammar, OURS), damaged[:place], Had()).calls[call]
        assert written.arguments.startswith(kept.arguments)
        assert kept.length <= sound(written.name, written.arguments)
        assert kept.unfinished


def test_a_call_that_only_the_engine_sees_is_not_cut_off() -> None:
    assert place("Hi. <tool_call>", Cut.CALL, content="Hi. ") is None


def test_every_outcome_that_is_cut_is_cut_further_back_the_second_time() -> None:
    depth = [Cut.END, Cut.TEXT, Cut.SOUND, Cut.CALL, Cut.BEFORE]
    for outcome, cuts in [*CUTS.items(), *CUTS_IN_CALLS.items()]:
        assert list(cuts) == sorted(cuts, key=depth.index)
        assert len(cuts) > 1 or outcome is Outcome.FAILED
    assert cuts_of(Outcome.INVALID_JSON, 0, in_call=True)[0] is Cut.SOUND
    assert cuts_of(Outcome.INVALID_JSON, 1, in_call=True)[0] is Cut.CALL
    assert cuts_of(Outcome.FAILED, 7, in_call=True) == (Cut.END,)
    assert cuts_of(Outcome.PARALLEL_CALLS, 0, in_call=True) == ()
