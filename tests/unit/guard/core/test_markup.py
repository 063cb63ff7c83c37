"""Leaked markup: found in any chunking, told apart from quotations, without holding back ordinary text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core import markup
from serve.guard.core.markup import MARKUP, MarkupScanner, find_in_arguments, find_markup, unfinished

MARKERS = [
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_call_section_begin|>", "<|tool_calls_section_end|>", "<tool_call>", "</tool_call>", "<function=",
    "</function>", "<parameter=", "</parameter>", "<think>", "</think>", "<tool_code>", "<|im_end|>",
    "<|reserved_token_163700|>", "<|tool_call_begin|", "<|start_header_id|",
]  # fmt: skip


def nothing(markup: str) -> bool:
    return False


def scanned(pieces: list[str], quoted: object = nothing) -> tuple[str, str]:
    scanner = MarkupScanner(quoted)  # type: ignore[arg-type]
    passed = "".join(map(scanner.feed, pieces))
    return passed + scanner.finish(), scanner.leak


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_found_when_it_comes_a_character_at_a_time(marker: str) -> None:
    assert scanned(list(f"a < b {marker}rest")) == ("a < b ", f"{marker}rest")


@given(
    st.lists(st.sampled_from([*MARKERS, "<", "<|", "a", "`", "汉", " <func", "</", "|>", "tool"]), max_size=8),
    st.data(),
)
def test_the_result_does_not_depend_on_the_cuts(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    pieces, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    passed, leak = scanned(pieces)
    assert (passed, leak) == scanned([text])
    assert passed + leak == text


@given(st.text(alphabet="<>|/abtool_callthinkfunction= 汉`", max_size=60))
def test_what_passes_holds_no_markup(text: str) -> None:
    passed, _ = scanned([text])
    assert find_markup(passed, nothing) is None


@pytest.mark.parametrize("text", ["a < b", "x<y>z", "if (a<b) {", "<div>", "<|", "1 <| 2 |> 3", "<functional>", "a <"])
def test_ordinary_text_passes_whole(text: str) -> None:
    assert scanned(list(text)) == (text, "")


def test_only_what_may_become_markup_is_held_back() -> None:
    assert MarkupScanner(nothing).feed("text <div> and <too") == "text <div> and "
    assert unfinished("no such thing <b") == 0
    for marker in MARKERS:
        for length in range(1, len(marker)):
            assert unfinished("a" + marker[:length]) == length


def test_a_quotation_in_the_answer_or_in_the_request_is_no_leak() -> None:
    text = "Write `<tool_call>` first"
    assert scanned(list(text)) == (text, "")
    text = "Write <tool_call> first"
    assert scanned([text], lambda markup: markup == "<tool_call>") == (text, "")
    assert scanned([text + "<think>"], lambda markup: markup == "<tool_call>") == (text, "<think>")


def test_arguments_are_searched_for_odd_keys_too() -> None:
    assert find_in_arguments('{"parameter=city": 1}', nothing)
    assert find_in_arguments('{"a": "<|tool_call_end|>"}', nothing)
    assert not find_in_arguments('{"parameter": "a=b", "function": "<div>"}', nothing)
    assert MARKUP.search("<|tool_call_begin|>")


@pytest.mark.parametrize("marker", MARKERS)
def test_markup_is_found_in_a_long_text_too(marker: str) -> None:
    text = "a < b <| " * 1_000
    found = find_markup(f"{text}{marker}rest", nothing)
    assert found is not None
    assert (found.start(), found.group()) == (len(text), marker)
    assert find_in_arguments(f"{text}{marker}rest", nothing) is not None
    assert find_in_arguments(text, nothing) is None


def test_every_marker_holds_one_of_the_parts_that_are_looked_for_first() -> None:
    special = ["tool_call_begin", "tool_calls_section_end", "im_user", "im_middle", "reserved_token_1", "endoftext",
               "media_begin", "media_pad", "start_header_id", "end_header_id"]  # fmt: skip
    for marker in [*(f"<|{name}|>" for name in special), "<argname>", "<arg_value>", "◁think▷", "◁/think▷"]:
        assert find_markup(" " * 5_000 + marker, nothing) is not None, marker


@pytest.mark.parametrize("key", ['"parameter=', '"<parameter=', '"function=', '"<function='])
def test_odd_keys_are_found_in_arguments(key: str) -> None:
    assert find_in_arguments('{"a": 1, ' + key + 'city": 2}', nothing) is not None


@given(st.lists(st.sampled_from([*MARKERS, '"parameter=', "<", "<|", "a", "`", "汉"]), max_size=40).map("".join))
def test_a_text_searched_in_windows_has_the_same_markup(text: str) -> None:
    def found() -> list[object]:
        matches = find_markup(text, nothing), find_in_arguments(text, nothing)
        return [match and match.span() for match in matches]

    whole = found()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(markup, "_WINDOW", 7)
        assert found() == whole
