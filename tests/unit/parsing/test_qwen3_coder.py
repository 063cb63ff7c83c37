"""Edge cases of the XML format that the conformance rows do not hold."""

import json

import pytest

from serve.parsing import StreamParser, Violation, fold, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import TOOLS

FREE = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]
SPACED = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"first name": {"type": "string"}, "a=b": {"type": "integer"}}}}}]  # fmt: skip


def call(*parameters: tuple[str, str], name: str = "get_weather") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def test_a_mangled_key_is_reported_at_any_place_and_under_any_schema() -> None:
    for tools, name in ((TOOLS, "get_weather"), (FREE, "run")):
        first = parse(call(("parameter=city", "Bern"), name=name), "qwen3_coder", tools)
        assert [fault.kind for fault in first.violations] == ["malformed_call"]
        assert "Bern" in (first.content or "")
        second = parse(call(("city", "Bern"), ("parameter=days", "2"), name=name), "qwen3_coder", tools)
        assert [fault.kind for fault in second.violations] == ["unknown_argument"]


def test_a_declared_key_may_hold_any_character() -> None:
    message = parse(call(("first name", "Ada"), ("a=b", "3"), name="f"), "qwen3_coder", SPACED)
    assert json.loads(message.tool_calls[0].arguments) == {"first name": "Ada", "a=b": 3}
    assert message.violations == ()


@pytest.mark.parametrize("lost", ["<tool_call>\n<function=get_weather>\n", "<tool_call>\n<"])
def test_the_remains_of_a_call_that_lost_its_beginning_are_reported_and_stay_content(lost: str) -> None:
    text = call(("city", "Bern")).removeprefix(lost)
    message = parse(text, "qwen3_coder", TOOLS)
    assert (message.content, message.tool_calls) == (text, ())
    assert {fault.kind for fault in message.violations} == {"stray_marker"}


def test_doubled_tags_are_taken_out_and_reported() -> None:
    for tag in ("<tool_call>\n", "</function>\n", "</tool_call>"):
        message = parse(call(("city", "Bern")).replace(tag, tag * 2), "qwen3_coder", TOOLS)
        assert [json.loads(each.arguments) for each in message.tool_calls] == [{"city": "Bern"}]
        assert [fault.kind for fault in message.violations] == ["stray_marker"], tag
        assert message.content is None or tag == "</tool_call>"


def test_a_closing_tag_that_the_value_does_not_open_makes_it_ambiguous() -> None:
    message = parse(call(("city", "Bern\n</parameter>")), "qwen3_coder", TOOLS)
    assert json.loads(message.tool_calls[0].arguments) == {"city": "Bern\n</parameter>"}
    assert [fault.kind for fault in message.violations] == ["ambiguous_value"]
    quoted = parse(call(("city", "<parameter=x>1</parameter> ok")), "qwen3_coder", TOOLS)
    assert json.loads(quoted.tool_calls[0].arguments) == {"city": "<parameter=x>1</parameter> ok"}
    assert quoted.violations == ()


@pytest.mark.parametrize("value", ["Zurich</city>", "Zurich</city>\n", "\nZurich</city> "])
def test_a_value_that_ends_in_a_tag_of_its_own_name_is_ambiguous(value: str) -> None:
    text = call(("city", value), ("days", "2"))
    assert [fault.kind for fault in parse(text, "qwen3_coder", TOOLS).violations] == ["ambiguous_value"]
    unclosed = text.replace("</parameter>\n<parameter=days>", "<parameter=days>")
    assert unclosed != text
    assert "ambiguous_value" in [fault.kind for fault in parse(unclosed, "qwen3_coder", TOOLS).violations]
    parser = StreamParser("qwen3_coder", TOOLS)
    message = fold([*(event for letter in text for event in parser.feed(letter)), *parser.finish()])
    assert [fault.kind for fault in message.violations] == ["ambiguous_value"]


@pytest.mark.parametrize(
    "value", ["<city>Zurich</city>", "<city id='1'>\nZurich</city>", "</city> of Zurich", "</town>"]
)
def test_a_value_that_opens_its_tag_or_goes_on_is_not(value: str) -> None:
    message = parse(call(("city", value)), "qwen3_coder", TOOLS)
    assert json.loads(message.tool_calls[0].arguments) == {"city": value}
    assert message.violations == ()


@pytest.mark.parametrize("tag", ["<function=", "<parameter="])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_doubled_bracket_before_a_tag_is_no_fault(tag: str, cut: int) -> None:
    text = call(("city", "Bern")).replace(tag, f"<{tag}")
    parser = StreamParser("qwen3_coder", TOOLS)
    at = text.index(f"<{tag}") + cut
    message = fold([*parser.feed(text[:at]), *parser.feed(text[at:]), *parser.finish()])
    assert (message.content, message.violations) == (None, ())
    assert [json.loads(each.arguments) for each in message.tool_calls] == [{"city": "Bern"}]


@pytest.mark.parametrize("text", ["<tool_call>\n<<b> is bold", "<tool_call>\n<", "<tool_call>\n< <function=x"])
def test_a_bracket_that_opens_nothing_comes_back(text: str) -> None:
    message = parse(text, "qwen3_coder", TOOLS)
    assert (message.content, message.tool_calls) == (text, ())


def test_text_behind_a_call_in_its_block_is_content_without_the_tag_that_closes_the_block() -> None:
    text = call(("city", "Bern")).replace("\n</tool_call>", "\nThat is all.</tool_call> Bye.")
    message = parse(text, "qwen3_coder", TOOLS)
    assert message.content == "\nThat is all. Bye."
    assert [fault.kind for fault in message.violations] == ["stray_marker"]


@pytest.mark.parametrize("grammar", ["qwen3_coder", "hermes"])
def test_an_empty_block_is_a_dropped_call_in_content_and_a_word_in_reasoning(grammar: str) -> None:
    text = "<tool_call>\n</tool_call>"
    assert parse(text, grammar, TOOLS).violations == (Violation("malformed_call", 0, text, hidden=True),)
    thought = parse(f"Not {text} here.</think>", grammar, TOOLS, thinking=True)
    assert (thought.reasoning, thought.violations) == (f"Not {text} here.", ())


@pytest.mark.parametrize("grammar", ["qwen3_coder", "hermes"])
def test_prose_may_name_the_tags(grammar: str) -> None:
    for text in ("Put `<tool_call>` first and `</tool_call>` last.", "A <tool_call> begins it."):
        message = parse(text, grammar, TOOLS)
        assert (message.content, message.violations) == (text, ())


def test_a_call_that_is_cut_anywhere_is_unfinished() -> None:
    text = call(("city", "Bern"))
    for place in range(len("<tool_call>\n<"), text.index("</parameter>")):
        message = parse(text[:place], "qwen3_coder", TOOLS)
        assert {fault.kind for fault in message.violations} <= {"unfinished_call", "missing_argument"}, text[:place]
        assert message.violations[0].kind == "unfinished_call"


@pytest.mark.parametrize("tag", ["</parameter", "</parameter1>", "</parameter_function>", "</parameters>"])
def test_a_closing_tag_that_drifted_closes_where_the_next_parameter_follows_and_else_is_text(tag: str) -> None:
    drifted = call(("city", "Bern"), ("days", "3")).replace("</parameter>", tag, 1)
    message = parse(drifted, "qwen3_coder", TOOLS)
    assert json.loads(message.tool_calls[0].arguments) == {"city": "Bern", "days": 3}
    assert [fault.kind for fault in message.violations] == ["drifted_marker"]
    text = parse(call(("city", f"{tag}\nBern")), "qwen3_coder", TOOLS)
    assert json.loads(text.tool_calls[0].arguments) == {"city": f"{tag}\nBern"}
    assert text.violations == ()


def test_each_ambiguous_value_is_reported_by_itself() -> None:
    text = call(("city", "Bern</city>"), ("note", "\nfine"), ("days", "2</days>"))
    message = parse(text, "qwen3_coder", TOOLS)
    faults = [fault for fault in message.violations if fault.kind == "ambiguous_value"]
    assert [fault.raw.strip().partition("<")[0] for fault in faults] == ["Bern", "2"]
    assert all(text.startswith(fault.raw, fault.position) for fault in faults)
    many = call(*(("city", "x</city>") for _ in range(2000)))
    reported = sum(len(fault.raw) for fault in parse(many, "qwen3_coder", TOOLS).violations)
    assert reported < 5 * len(many)


WEATHER = [
    {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "note": {"type": "string"}}}}}
    for name in ("get_weather", "plan_trip")
]  # fmt: skip
OSLO, ROME = ("get_weather", {"city": "Oslo"}), ("plan_trip", {"city": "Rome"})
JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=plan_trip>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
NAMED_CALL = (
    '<tool_call>\n<function name="plan_trip">\n<parameter name="city">Rome</parameter>\n</function>\n</tool_call>'
)
DRIFTED = {
    JSON_CALL: [OSLO],
    f"{JSON_CALL}\n{JSON_CALL}": [OSLO, OSLO],
    f"{JSON_CALL}\n{XML_CALL}\n{JSON_CALL}": [OSLO, ROME, OSLO],
    JSON_CALL.replace("\n</", "\n" + JSON_CALL[12:-13] + "\n</"): [OSLO, OSLO],
    NAMED_CALL: [ROME],
    NAMED_CALL.replace('"', "'"): [ROME],
    NAMED_CALL.replace("</function>", '<parameter name="note">a</parameter></function>'): [
        ("plan_trip", {"city": "Rome", "note": "a"})
    ],
    f"{NAMED_CALL}{XML_CALL}": [ROME, ROME],
}
TRAILING = [
    "</function_invocation>", "</function>", "</function>\n</tool_call>", "\n</function_call>\n", "</tool_calls>",
    "</tool_call>\n</tool_call>", "</tool_call></function>",
]  # fmt: skip


def called(text: str) -> list[tuple[str, object]]:
    message = parse(text, "qwen3_coder", WEATHER)
    assert message.content is None
    return [(each.name, json.loads(each.arguments)) for each in message.tool_calls]


@pytest.mark.parametrize("text", DRIFTED)
def test_calls_as_other_formats_write_them_in_the_block_are_calls(text: str) -> None:
    assert called(text) == DRIFTED[text]
    assert parse(text, "qwen3_coder", WEATHER).violations == ()


@pytest.mark.parametrize("tags", TRAILING)
def test_closing_tags_behind_a_whole_call_are_no_content(tags: str) -> None:
    assert called(XML_CALL.replace("</function>", f"</function>{tags}")) == [ROME]
    assert called(XML_CALL + tags) == [ROME]
    assert called(f"{XML_CALL}\n{tags}\n{JSON_CALL}") == [ROME, OSLO]


@pytest.mark.parametrize("text", [XML_CALL, JSON_CALL])
def test_half_a_closing_tag_at_the_end_is_no_content(text: str) -> None:
    for cut in range(len(text) - len("</tool_call>") + 2, len(text)):
        assert len(called(text[:cut])) == 1
        assert len(called(f"{text}\n{text[len(text) - 12 : cut]}")) == 1
    assert parse(f"{text} <", "qwen3_coder", WEATHER).content == " <"


def test_tags_with_attributes_in_the_value_of_a_plain_tag_are_text() -> None:
    launch = '<launch><parameter name="note" value="x"/>\n<parameter name="note">y</parameter>\n</launch>'
    text = XML_CALL.replace("Rome", launch)
    assert called(text) == [("plan_trip", {"city": launch})]


def test_an_object_behind_a_call_of_tags_is_text() -> None:
    message = parse(XML_CALL.replace("</function>", '</function>{"a": 1}'), "qwen3_coder", WEATHER)
    assert (message.content, len(message.tool_calls)) == ('{"a": 1}\n', 1)


def test_what_stands_behind_a_broken_object_reads_the_same_in_any_chunking() -> None:
    broken = '<tool_call>\n{"name": "get_weather", "arguments":]{"city": "Oslo"}\n</tool_call>'
    for text in (broken, XML_CALL + broken):
        parser = StreamParser("qwen3_coder", WEATHER)
        letters = fold([*(event for letter in text for event in parser.feed(letter)), *parser.finish()])
        assert letters == parse(text, "qwen3_coder", WEATHER)


def test_what_stands_behind_a_broken_object_reads_the_same_in_any_steps_after_a_call_of_tags() -> None:
    text = XML_CALL + '<tool_call>\n{"nam": "f"}{"name": 1, "arguments": {}}\n</tool_call>'
    whole = parse(text, "qwen3_coder", WEATHER)
    parser = StreamParser("qwen3_coder", WEATHER)
    assert fold([*(event for letter in text for event in parser.feed(letter)), *parser.finish()]) == whole


OBJECT = '{"city": "Bern", "note": "</function> and </tool_call>"}'


@pytest.mark.parametrize(
    "text",
    [
        f"<function=get_weather>{OBJECT}</function>",
        f"<tool_call>\n<function=get_weather>\n{OBJECT}\n</function>\n</tool_call>",
        f"<tool_call><function=get_weather>{OBJECT}</tool_call>",
        f'<tool_call><function name="get_weather">{OBJECT}</function></tool_call>',
    ],
)
def test_an_object_behind_the_name_holds_the_arguments(text: str) -> None:
    message = parse(f"Well.{text}", "qwen3_coder", TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", OBJECT)]
    assert (message.content, message.violations) == ("Well.", ())


@pytest.mark.parametrize(
    ("rest", "kinds"),
    [
        ("", ["unfinished_call"]),
        ("<tool_call>", ["unfinished_call", "unfinished_call"]),
        (" x</function>", ["malformed_arguments"]),
    ],
)
def test_an_object_of_arguments_that_does_not_end_well_is_reported(rest: str, kinds: list[str]) -> None:
    message = parse(f"<function=get_weather>{OBJECT}{rest}", "qwen3_coder", TOOLS)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert [fault.kind for fault in message.violations] == kinds


BARCELONA = (
    "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Barcelona, Spain</parameter>\n</function>\n"
    "</seed:tool_call>"
)


@pytest.mark.parametrize(
    ("thoughts", "reasoning"),
    [
        ("<seed:think>\nGot it. The format is `<seed:tool_call>`.</seed:think>",
         "Got it. The format is `<seed:tool_call>`."),
        ("<seed:think>It is 512.</seed:cot_budget_reflect>\nSo.\n<seed:cot_budget_reflect>I have used 131 tokens."
         "</seed:cot_budget_reflect>\n It can be omitted.</seed:think>",
         "It is 512.</seed:cot_budget_reflect>\nSo.\n<seed:cot_budget_reflect>I have used 131 tokens."
         "</seed:cot_budget_reflect>\n It can be omitted."),
        ("</seed:cot_budget_reflect>\nThe thinking budget is 0.\n</seed:think>",
         "</seed:cot_budget_reflect>\nThe thinking budget is 0."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [None, "I look."])
def test_seed_oss_thinks_in_its_own_tags_and_calls_in_them(thoughts: str, reasoning: str, content: str | None) -> None:
    text = "\n".join([thoughts, *([content, ""] if content else []), BARCELONA])
    message = parse(text, "seed_oss", TOOLS, thinking=True)
    assert message == cases.stream(text, grammar="seed_oss", tools=TOOLS, thinking=True)
    assert (message.reasoning or "").strip() == reasoning
    assert (message.content, message.violations) == (content, ())
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("get_weather", '{"city": "Barcelona, Spain"}')
    ]


def test_a_value_of_seed_oss_keeps_its_newlines_and_may_be_pythons() -> None:
    text = BARCELONA.replace("Barcelona, Spain", "\na\nb\n").replace(
        "</function>", "<parameter=tags>['x', 1]</parameter>\n<parameter=deep>True</parameter>\n</function>"
    )
    parameters = {"type": "object", "properties": {
        "city": {"type": "string"}, "tags": {"type": "array"}, "deep": {"type": "boolean"}}}  # fmt: skip
    message = parse(text, "seed_oss", [{"function": {"name": "get_weather", "parameters": parameters}}])
    assert json.loads(message.tool_calls[0].arguments) == {"city": "\na\nb\n", "tags": ["x", 1], "deep": True}
