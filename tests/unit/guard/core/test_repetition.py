"""Words without end are told from texts that only have much in common with themselves."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import call, calls, chunk, tools_request

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, Severity, WholeGuard
from serve.guard.core.verdict import ends_in_repetition

LOOP = "Let me look at the file once more. " * 100
REPOSITORY = Path(__file__).parents[4]
STRICT_JSON: Any = {"response_format": {"type": "json_object"}}
LIKE_LOOPS = {
    "a table": "".join(f"| test_{number} | passed | {number % 7} ms |\n" for number in range(300)),
    "a dump": "".join(f"INSERT INTO users VALUES ({number}, 'user{number}');\n" for number in range(200)),
    "a matrix": "\n".join(", ".join("1" if row == column else "0" for column in range(60)) for row in range(60)),
    "lines": "".join(f"2026-11-30T12:{n // 60:02}:{n % 60:02} INFO worker: heartbeat\n" for n in range(200)),
    "bytes": "".join(f"{place:08x}  00 00 00 00 00 00 00 00  |........|\n" for place in range(0, 3200, 8)),
    "a ruler": "x\n" + "=" * 2000 + "\n",
}


@given(st.text(min_size=1, max_size=512), st.text(), st.integers(0, 511))
def test_one_part_over_and_over_is_found_wherever_it_is_cut(part: str, before: str, cut: int) -> None:
    text = part * (4096 // len(part) + 1)
    assert ends_in_repetition(before + text[: len(text) - cut % len(part)])


@pytest.mark.parametrize("kind", LIKE_LOOPS)
def test_rows_that_differ_are_no_repetition(kind: str) -> None:
    text = LIKE_LOOPS[kind]
    assert not any(ends_in_repetition(text[:end]) for end in range(len(text) + 1))


def test_no_place_in_our_own_files_ends_in_repetition() -> None:
    for path in [*REPOSITORY.glob("serve/**/*.py"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*.lock")]:
        text = path.read_text()
        assert not any(ends_in_repetition(text[:end][-4096:]) for end in range(0, len(text), 256)), path


def whole(message: dict[str, Any], reason: str, **more: Any) -> Guard:
    guard = WholeGuard(GuardConfig(), {**tools_request(), **more})
    guard.check({"choices": [{"index": 0, "message": message, "finish_reason": reason}]})
    return guard.guard


def streamed(delta: dict[str, Any], reason: str, **more: Any) -> Guard:
    guard = Guard(GuardConfig(), {**tools_request(), **more})
    guard.feed(chunk(delta))
    guard.feed(chunk({}, reason))
    guard.finish()
    return guard


@pytest.mark.parametrize(
    ("message", "more"),
    [
        ({"content": f"So. {LOOP}"}, {}),
        ({"reasoning_content": LOOP}, {}),
        ({"content": '{"a": "' + LOOP}, {**STRICT_JSON, "tools": []}),
        ({"content": f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{LOOP}'}, {}),
        (calls(call(0, "get_weather", '{"city": "' + LOOP)), {}),
    ],
)
def test_words_without_end_are_run_again_where_nothing_has_gone_out_and_always_count(
    message: dict[str, Any], more: dict[str, Any]
) -> None:
    guard = whole(message, "length", **more)
    assert guard.state is GuardState.RERUN
    assert guard.verdicts[0].outcome is Outcome.REPETITION
    assert guard.verdicts[0].counts
    assert not guard.verdicts[0].by_length
    guard = streamed(message, "length", **more)
    assert guard.state is (GuardState.RERUN if "tool_calls" in message else GuardState.DONE)
    assert guard.verdicts[0].outcome is Outcome.REPETITION
    assert guard.verdicts[0].counts
    for ended in (whole(message, "stop", **more), streamed(message, "stop", **more)):
        assert all(defect.outcome is not Outcome.REPETITION for defect in ended.verdicts[0].defects)


def test_words_that_a_rerun_repeats_are_meant() -> None:
    guard = WholeGuard(GuardConfig(), tools_request())
    answer = {"choices": [{"index": 0, "message": {"content": LOOP}, "finish_reason": "length"}]}
    assert guard.check(answer) is None
    guard.guard.restart("standard")
    delivered = guard.check(answer)
    assert delivered is not None
    assert delivered["choices"][0]["message"]["content"] == LOOP
    assert delivered["specgate"]["unclean"] == ["repetition"]


def test_a_call_that_has_begun_to_go_out_stays() -> None:
    guard = Guard(GuardConfig(), tools_request(), live=True)
    chunks = guard.feed(chunk(calls(call(0, "get_weather", '{"notes": ["a'))))
    for _ in range(100):
        chunks += guard.feed(chunk(calls({"index": 0, "function": {"arguments": LOOP[:35]}})))
    guard.feed(chunk({}, "length"))
    guard.finish()
    assert chunks
    assert guard.state is GuardState.DONE
    assert [(each.outcome, each.severity) for each in guard.verdicts[0].defects][-1] == (
        Outcome.REPETITION, Severity.NOTE,
    )  # fmt: skip
