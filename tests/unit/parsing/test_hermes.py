"""Edge cases of JSON in `<tool_call>` that the conformance rows do not hold, and Cohere's calls."""

import json

import pytest

from serve.parsing import ParsedMessage, Violation, parse
from tests.unit.parsing.cases import grouped, stream
from tests.unit.parsing.formats import TOOLS

GOOD = '{"name": "get_weather", "arguments": {"city": "Bern"}}'


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "name": "x", "arguments": {"city": "Bern"}}',
        '{"name": "get_weather", "arguments": {"city": "Bern"}, "arguments": {"city": "Rome"}}',
        '{"name": "get_weather", "arguments": {"city": "Bern"}, "parameters": {"city": "Rome"}}',
    ],
)
def test_what_the_first_of_two_equal_keys_hides_is_reported(text: str) -> None:
    message = parse(f"<tool_call>{text}</tool_call>", "hermes", TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", '{"city": "Bern"}')]
    assert message.violations == (Violation("stray_text", 0, f"<tool_call>{text}", 0, hidden=True),)


@pytest.mark.parametrize("inner", ["[1, 2]", f"\n```json\n{GOOD}\n```\n", "<function=get_weather>", "\nhello"])
def test_a_block_without_an_object_is_a_malformed_call_and_stays_content(inner: str) -> None:
    text = f"<tool_call>{inner}</tool_call>"
    message = parse(text, "hermes", TOOLS)
    assert (message.content, message.tool_calls) == (text, ())
    assert [fault.kind for fault in message.violations] == ["malformed_call"]


def test_a_bracket_too_many_does_not_cost_the_call() -> None:
    message = parse(f"<tool_call>\n{GOOD}}}\n</tool_call>", "hermes", TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", '{"city": "Bern"}')]
    assert message.content == "}\n"
    assert [fault.kind for fault in message.violations] == ["stray_marker"]


def test_what_a_call_that_looks_whole_has_swallowed_is_hidden() -> None:
    whole = GOOD.removesuffix("}")
    for text, hidden in ((f"{whole}{GOOD}", True), (whole, True), (whole.removesuffix("}"), False)):
        message = parse(f"<tool_call>{text}</tool_call>", "hermes", TOOLS)
        assert [call.name for call in message.tool_calls] == ["get_weather"]
        assert [(fault.kind, fault.hidden) for fault in message.violations] == [("unfinished_call", hidden)]


def test_any_number_of_objects_in_a_block_are_as_many_calls() -> None:
    message = parse(f"<tool_call>{GOOD * 3000}</tool_call>", "hermes", TOOLS)
    assert (len(message.tool_calls), message.content, message.violations) == (3000, None, ())
    assert {call.arguments for call in message.tool_calls} == {'{"city": "Bern"}'}


@pytest.mark.parametrize("inner", ['{"arguments": {"city": "Bern"}}', "{name: get_weather}", "{{}", f"{{}} {GOOD[:9]}"])
def test_an_object_that_is_no_call_keeps_both_tags_of_its_block(inner: str) -> None:
    text = f"<tool_call>\n{inner}\n</tool_call>"
    message = parse(text, "hermes", TOOLS)
    assert (message.content, message.tool_calls) == (text, ())
    assert {fault.kind for fault in message.violations} == {"malformed_call"}


def test_the_tag_behind_a_good_call_is_markup_whatever_came_before() -> None:
    message = parse(f"<tool_call>{{}}{GOOD}</tool_call>", "hermes", TOOLS)
    assert (message.content, len(message.tool_calls)) == ("<tool_call>{}", 1)


@pytest.mark.parametrize("arguments", ['{"city": "Bern",}', '{"city": NaN}', '{"city": "a\nb"}'])
def test_arguments_that_are_not_json_are_a_call_with_malformed_arguments(arguments: str) -> None:
    message = parse(GOOD.replace('{"city": "Bern"}', arguments).join(("<tool_call>", "</tool_call>")), "hermes", TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", arguments)]
    assert [fault.kind for fault in message.violations] == ["malformed_arguments"]


@pytest.mark.parametrize("grammar", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    ("opening", "parting", "closing"), [("[", ", ", "]"), ("\n[\n  ", "\n,\n  ", "\n]\n"), ("[", ",", "")]
)
def test_a_list_of_objects_is_as_many_calls(grammar: str, opening: str, parting: str, closing: str) -> None:
    text = f"<tool_call>{opening}{parting.join([GOOD] * 3)}{closing}</tool_call> Done."
    whole = parse(text, grammar, TOOLS)
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [("get_weather", '{"city": "Bern"}')] * 3
    assert (whole.content, whole.violations) == (" Done.", ())
    for size in range(1, 9):
        assert stream(grouped(list(text), size), grammar=grammar, tools=TOOLS) == whole, size


@pytest.mark.parametrize("opening", ["[", " [ ", ""])
def test_a_fault_of_a_later_object_stands_where_it_says_however_the_text_is_cut(opening: str) -> None:
    text = f'<tool_call>{opening}{{"a": 1}}{{"b": 2}}</tool_call>'
    whole = parse(text, "hermes", TOOLS)
    assert [violation.position for violation in whole.violations] == [0, text.index('{"b"')]
    assert stream(text, grammar="hermes", tools=TOOLS) == whole


@pytest.mark.parametrize("rest", ["", ", ", f", {GOOD[:20]}"])
def test_a_list_that_is_cut_is_reported(rest: str) -> None:
    message = parse(f"<tool_call>[{GOOD}{rest}", "hermes", TOOLS)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert {fault.kind for fault in message.violations} == {"unfinished_call"}


@pytest.mark.parametrize(
    "ends", ["</function>", "</parameter>\n</function>\n</tool_call>", "\n</function>\n</tool_call>"]
)
def test_ends_of_another_format_behind_a_call_are_markup_and_words_elsewhere(ends: str) -> None:
    message = parse(f"A </function> ends it.<tool_call>{GOOD}{ends}", "hermes", TOOLS)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert (message.content or "").strip() == "A </function> ends it."
    assert {fault.kind for fault in message.violations} == {"stray_marker"}


COHERE_CALLS = (  # as Cohere's own renderer writes them
    "<|START_ACTION|>[\n"
    '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "</b> é\\n\\"q\\""}},\n'
    '    {"tool_call_id": "1", "tool_name": "get_weather", "parameters": {"city": "<|END_ACTION|>", "days": 2}}\n'
    "]<|END_ACTION|>"
)
COHERE_ANSWERS = ["<|START_RESPONSE|>Answer.\n<|END_RESPONSE|>", "<|START_TEXT|>Answer.\n<|END_TEXT|>", "Answer.\n"]


def cohere(text: str, thinking: bool = False, **how: bool) -> ParsedMessage:
    message = parse(text, "cohere_command4", TOOLS, thinking, **how)
    assert message == stream(text, grammar="cohere_command4", tools=TOOLS, thinking=thinking, **how)
    return message


@pytest.mark.parametrize("opening", ["", "<|START_THINKING|>"])
@pytest.mark.parametrize("thought", ["Hm.", ""])
@pytest.mark.parametrize("answer", ["", *COHERE_ANSWERS])
def test_cohere_thinks_answers_and_calls_between_tokens(opening: str, thought: str, answer: str) -> None:
    message = cohere(f"{opening}{thought}<|END_THINKING|>{answer}{COHERE_CALLS}", thinking=True)
    assert (message.reasoning, message.content) == (thought or None, "Answer.\n" if answer else None)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        ("get_weather", {"city": '</b> é\n"q"'}),
        ("get_weather", {"city": "<|END_ACTION|>", "days": 2}),
    ]
    assert message.violations == ()


def test_coheres_answer_ends_thoughts_that_lack_their_end() -> None:
    message = cohere("It is 4.<|START_TEXT|>It is 4.<|END_TEXT|>", thinking=True, calls=False)
    assert (message.reasoning, message.content, message.violations) == ("It is 4.", "It is 4.", ())


def test_a_name_of_coheres_tokens_within_its_answer_is_a_word() -> None:
    for text in ("It writes <|START_TEXT|>, then <|END_TEXT|>.", "An `<|START_ACTION|>` begins a list."):
        assert cohere(text).content == text


def test_a_list_of_coheres_calls_that_is_cut_is_unfinished() -> None:
    message = cohere('<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Be')
    assert [fault.kind for fault in message.violations] == ["unfinished_call"]
