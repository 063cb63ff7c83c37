"""DeepSeek's formats where the conformance rows do not reach: damage, quotations, other spellings, token ids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.parsing import ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import DSML_TAGS, FORMATS, TOOLS, any_call, good_call

JSON_FAMILIES = ("deepseek_v3", "deepseek_v31")
FAMILIES = (*JSON_FAMILIES, *DSML_TAGS)
WRAPPED = pytest.mark.parametrize("grammar", DSML_TAGS)


def answer(grammar: str, calls: int = 2) -> str:
    """Reasoning, prose, and calls as the family's template writes them."""
    cities = [f"City{number}" for number in range(calls)]
    if grammar in DSML_TAGS:
        wrapper = DSML_TAGS[grammar][1]
        body = "\n".join(any_call(grammar, 1, city, number) for number, city in enumerate(cities))
        return f"Hm.</think>Text.\n\n<{wrapper}>\n{body}\n</{wrapper}>"
    begin, end = FORMATS[grammar].wrapper
    body = "\n".join(good_call(grammar, city, number) for number, city in enumerate(cities))
    return f"Hm.</think>Text.{begin}{body}{end}"


def read(grammar: str, text: str, tools: Any = TOOLS, thinking: bool = False) -> ParsedMessage:
    """The message, which must be the same character by character."""
    message = parse(text, grammar, tools, thinking)
    assert cases.stream(text, grammar=grammar, tools=tools, thinking=thinking) == message
    return message


def arguments(message: ParsedMessage) -> list[Any]:
    return [json.loads(call.arguments) for call in message.tool_calls]


def kinds(message: ParsedMessage) -> list[str]:
    return [violation.kind for violation in message.violations]


def dsml(inside: str, wrapper: str = "tool_calls") -> str:
    return f"<｜DSML｜{wrapper}>\n{inside}\n</｜DSML｜{wrapper}>"


def invoke(*parameters: str, name: str = "get_weather") -> str:
    return f'<｜DSML｜invoke name="{name}">\n' + "\n".join(parameters) + "\n</｜DSML｜invoke>"


def parameter(key: str, value: str, string: str = ' string="true"') -> str:
    return f'<｜DSML｜parameter name="{key}"{string}>{value}</｜DSML｜parameter>'


@pytest.mark.parametrize("grammar", FAMILIES)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_one_damaged_marker_changes_no_call_without_a_violation(grammar: str, data: st.DataObject) -> None:
    text = answer(grammar)
    whole = read(grammar, text, thinking=True)
    assert (whole.reasoning, whole.content, whole.violations) == ("Hm.", "Text.", ())
    units = cases.units(text)
    places = [place for place, unit in enumerate(units) if len(unit) > 1]
    place = data.draw(st.sampled_from(places))
    marker = units[place]
    at = data.draw(st.integers(0, len(marker) - 1))
    units[place] = data.draw(
        st.sampled_from(
            [
                "",
                marker * 2,
                marker[:at] + marker[at + 1 :],
                f"{marker[:at]}x{marker[at + 1 :]}",
                marker[:at],
                marker[at:],
            ]
        )
    )
    message = read(grammar, "".join(units), thinking=True)
    assert message.violations or message.tool_calls == whole.tool_calls
    assert not any(set("<>｜|") & set(call.name) for call in message.tool_calls)


@pytest.mark.parametrize("grammar", FAMILIES)
def test_an_output_that_ends_in_a_call_is_never_clean(grammar: str) -> None:
    text = answer(grammar, calls=1)
    first = text.index("Text.") + len("Text.\n\n") + 1
    last = text.rindex("}") if grammar in JSON_FAMILIES else text.rindex("</")
    for cut in range(first + len("<｜DSML｜tool"), last):
        message = read(grammar, text[:cut], thinking=True)
        assert message.violations or "<" in (message.content or ""), text[:cut]


@pytest.mark.parametrize("grammar", JSON_FAMILIES)
@pytest.mark.parametrize("style", JSON_FAMILIES)
def test_both_json_formats_are_read_whatever_the_model_is_said_to_write(grammar: str, style: str) -> None:
    message = read(grammar, answer(style), thinking=True)
    assert arguments(message) == [{"city": "City0", "days": 0}, {"city": "City1", "days": 1}]
    assert message.violations == ()


@pytest.mark.parametrize("grammar", JSON_FAMILIES)
@pytest.mark.parametrize(("bar", "space"), [("|", "▁"), ("｜", "_"), ("|", "_")])
def test_markers_in_ascii_are_read_and_reported(grammar: str, bar: str, space: str) -> None:
    text = answer(grammar, calls=1).replace("｜", bar).replace("▁", space)
    message = read(grammar, text, thinking=True)
    assert arguments(message) == [{"city": "City0", "days": 0}]
    assert kinds(message) == ["drifted_marker"]


def test_a_damaged_fence_is_reported_and_costs_no_call() -> None:
    text = answer("deepseek_v3", calls=1).replace("```json", "``jsn")
    message = read("deepseek_v3", text, thinking=True)
    assert arguments(message) == [{"city": "City0", "days": 0}]
    assert kinds(message) == ["drifted_marker"]


def test_results_that_a_model_makes_up_behind_its_calls_are_reported() -> None:
    text = answer("deepseek_v31") + "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜>"
    message = read("deepseek_v31", text, thinking=True)
    assert len(message.tool_calls) == 2
    assert set(kinds(message)) == {"stray_marker"}
    assert "<" not in (message.content or "")


@WRAPPED
@pytest.mark.parametrize("token", ["|DSML|", "||DSML||", " | DSML | ", "｜｜DSML｜｜", "‖DSML‖", "|DSML| ", ""])
def test_other_spellings_of_the_token_are_read_and_reported(grammar: str, token: str) -> None:
    text = f"See.\n\n{dsml(invoke(parameter('city', 'Bern')))}".replace("｜DSML｜", token)
    message = read(grammar, text)
    assert (message.content, arguments(message), kinds(message)) == ("See.", [{"city": "Bern"}], ["drifted_marker"])


@WRAPPED
@pytest.mark.parametrize("wrapper", ["toolcalls", "tool", "tool_use", "tool_call", "function_call"])
def test_misspelt_wrappers_are_read_and_reported(grammar: str, wrapper: str) -> None:
    text = f"-<｜DSML｜{wrapper}>\n{invoke(parameter('city', 'Bern'))}\n</｜DSML｜tool_calls>"
    message = read(grammar, text)
    assert (message.content, arguments(message), kinds(message)) == ("-", [{"city": "Bern"}], ["drifted_marker"])


@WRAPPED
@pytest.mark.parametrize(
    "prose",
    [
        "The model writes <｜DSML｜toolcalls> here. More text.",
        'A `<｜DSML｜tool_calls>` opens it, and `<｜DSML｜invoke name="f">` begins a call.',
        "see <｜DSML｜foo> and <｜DSML｜tool_call> here",
        "see <｜DSML｜ here\nnext line",
        "<tool_calls>\n  <call/>\n</tool_calls>",
        '<invoke name="nothing">\n<parameter name="a">1</parameter>\n</invoke>',
        "<tool_calls></tool_calls>",
    ],
)
def test_prose_about_calls_stays_prose(grammar: str, prose: str) -> None:
    message = read(grammar, prose)
    assert (message.content, message.tool_calls, message.violations) == (prose, (), ())


@WRAPPED
def test_xml_in_reasoning_does_not_end_it_where_calls_are_not_parsed(grammar: str) -> None:
    message = parse("A <calls> element, <tool_calls>.</think>Yes.", grammar, thinking=True, calls=False)
    assert (message.reasoning, message.content) == ("A <calls> element, <tool_calls>.", "Yes.")


@WRAPPED
def test_a_wrapper_without_a_call_is_reported_and_the_text_behind_it_is_content(grammar: str) -> None:
    message = read(grammar, f"{dsml('')}Sorry.")
    assert (message.content, kinds(message)) == ("Sorry.", ["malformed_call"])


@WRAPPED
def test_text_behind_the_calls_is_reported_and_a_later_call_is_read(grammar: str) -> None:
    call = dsml(invoke(parameter("city", "Bern")))
    message = read(grammar, f"{call}\n And <｜end▁of▁sentence｜> on.{call} Done.")
    assert (message.content, len(message.tool_calls)) == (None, 2)
    assert [(each.kind, each.raw) for each in message.violations] == [
        ("stray_text", "And <｜end▁of▁sentence｜> on."),
        ("stray_text", "Done."),
    ]


@WRAPPED
def test_reasoning_between_calls_is_reasoning(grammar: str) -> None:
    call = dsml(invoke(parameter("city", "Bern")))
    message = read(grammar, f"<think>A</think>{call}<think>B</think>{call}")
    assert (message.reasoning, message.content, len(message.tool_calls)) == ("AB", None, 2)
    assert message.violations == ()


@pytest.mark.parametrize("grammar", FAMILIES)
def test_a_second_span_of_reasoning_is_reasoning(grammar: str) -> None:
    message = read(grammar, "<think>first</think>interlude <think>second</think>done")
    assert (message.reasoning, message.content) == ("firstsecond", "interlude done")
    quoted = "a</think>Use `<think>` and `</think>`."
    assert read(grammar, quoted, thinking=True).content == "Use `<think>` and `</think>`."


@pytest.mark.parametrize("grammar", FAMILIES)
def test_the_token_that_ends_a_turn_is_no_content_unless_more_follows(grammar: str) -> None:
    end = "<｜end▁of▁sentence｜>"
    assert read(grammar, f"Hello.{end}").content == "Hello."
    assert read(grammar, f"Hm.{end}", thinking=True).reasoning == "Hm."
    assert read(grammar, f"It is {end} there.").content == f"It is {end} there."
    assert read(grammar, answer(grammar) + end, thinking=True).violations == ()


@WRAPPED
def test_a_call_in_reasoning_ends_it_at_the_wrapper_and_not_without_one(grammar: str) -> None:
    call = invoke(parameter("city", "Bern"))
    message = read(grammar, f"Hm.\n\n{dsml(call)}", thinking=True)
    assert (message.reasoning, message.violations) == ("Hm.", ())
    assert arguments(message) == [{"city": "Bern"}]
    bare = read(grammar, f"Hm.\n\n{call}", thinking=True)
    assert (bare.reasoning, bare.tool_calls, kinds(bare)) == (f"Hm.\n\n{call}", (), ["malformed_call"])
    drafted = read(grammar, f"I could write {call}.</think>No need.", thinking=True)
    assert (drafted.content, drafted.tool_calls, drafted.violations) == ("No need.", (), ())


@WRAPPED
@pytest.mark.parametrize("gap", ["", " ", "\n", "\n\n", "\n\n\n", "\n\n  "])
def test_only_the_gap_that_the_template_writes_is_taken_off_content(grammar: str, gap: str) -> None:
    message = read(grammar, f"Text.{gap}{dsml(invoke(parameter('city', 'Bern')))}")
    assert message.content == f"Text.{gap}".removesuffix("\n\n")


ANY = {"type": "object", "properties": {
    "text": {"type": "string"}, "count": {"type": "integer"}, "free": {}, "any": {"type": ["string", "integer"]},
    "list": {"type": "array"}, "maybe": {"anyOf": [{"type": "object"}, {"type": "null"}]}}}  # fmt: skip


@WRAPPED
@pytest.mark.parametrize(
    ("key", "string", "text", "value"),
    [
        ("text", "true", " a\n<b> ", " a\n<b> "),
        ("text", "false", "hello", "hello"),
        ("text", "false", '"hello"', "hello"),
        ("text", "false", "42", "42"),
        ("text", None, "42", "42"),
        ("count", "true", "42", 42),
        ("count", "false", "42", 42),
        ("count", None, "42", 42),
        ("any", "true", "42", "42"),
        ("any", "false", "42", 42),
        ("free", "true", "[1]", "[1]"),
        ("free", "false", "[1]", [1]),
        ("free", None, "[1]", [1]),
        ("free", None, "a b", "a b"),
        ("free", "false", "NaN", "NaN"),
        ("unknown", "false", '{"a": 1.0}', {"a": 1.0}),
        ("unknown", "true", "null", "null"),
        ("list", "false", "[1, 2", "[1, 2"),
        ("maybe", "true", '{"a": 1}', {"a": 1}),
        ("maybe", "false", "null", None),
    ],
)
def test_a_value_is_what_the_schema_says_and_then_what_its_attribute_says(
    grammar: str, key: str, string: str | None, text: str, value: Any
) -> None:
    attribute = "" if string is None else f' string="{string}"'
    message = read(grammar, dsml(invoke(parameter(key, text, attribute))), [{"name": "get_weather", "parameters": ANY}])
    assert arguments(message) == [{key: value}]


@WRAPPED
@pytest.mark.parametrize(
    ("parameters", "expected", "fault"),
    [
        ([parameter("arguments", '{"city": "Bern"}', ' string="false"')], {"city": "Bern"}, []),
        ([parameter("input", '{"city": "Bern"}')], {"city": "Bern"}, []),
        ([parameter("input", '{"town": "Bern"}', "")], {"input": {"town": "Bern"}}, ["unknown_argument"]),
        ([parameter("input", "Bern")], {"input": "Bern"}, ["unknown_argument"]),
        ([parameter("input", "{}"), parameter("city", "Bern")], {"input": "{}", "city": "Bern"}, ["unknown_argument"]),
    ],
)
def test_one_undeclared_parameter_that_holds_all_arguments_is_unwrapped_if_they_suit(
    grammar: str, parameters: list[str], expected: Any, fault: list[str]
) -> None:
    message = read(grammar, dsml(invoke(*parameters)))
    assert arguments(message) == [expected]
    assert [kind for kind in kinds(message) if kind != "missing_argument"] == fault


@WRAPPED
def test_calls_without_parameters_and_with_an_object_in_their_place_are_read(grammar: str) -> None:
    bodies = [
        '<｜DSML｜invoke name="f"/>',
        '<｜DSML｜invoke name="f"></｜DSML｜invoke>',
        invoke(name="f"),
        invoke('{"a": "</｜DSML｜invoke>"}', name="f"),
        "<｜DSML｜invoke name='f'>\n</｜DSML｜invoke>",
    ]
    message = read(grammar, dsml("\n".join(bodies)), [])
    assert arguments(message) == [{}, {}, {}, {"a": "</｜DSML｜invoke>"}, {}]
    assert (message.content, message.violations) == (None, ())


@WRAPPED
@pytest.mark.parametrize(
    ("missing", "kind"),
    [
        ("</｜DSML｜parameter>", "malformed_call"),
        ("</｜DSML｜invoke>", "malformed_call"),
        ("</｜DSML｜tool_calls>", "unfinished_call"),
    ],
)
def test_a_missing_end_tag_is_reported_and_costs_no_call(grammar: str, missing: str, kind: str) -> None:
    calls = "".join(f'<｜DSML｜invoke name="get_weather">{parameter("city", city)}</｜DSML｜invoke>' for city in "AB")
    message = read(grammar, f"<｜DSML｜tool_calls>{calls}</｜DSML｜tool_calls>".replace(missing, "", 1))
    assert arguments(message) == [{"city": "A"}, {"city": "B"}]
    assert (kinds(message), message.violations[0].hidden) == ([kind], True)


@WRAPPED
@pytest.mark.parametrize(
    "value",
    [
        'print("</｜DSML｜parameter>") # closes',
        '<｜DSML｜parameter name="x" string="true">y</｜DSML｜parameter>\n<b>',
        "</parameter>",
        '<bean>\n<parameter name="city">Rome</parameter>\n</bean>',
        "</invoke>\n</tool_calls>",
        "`<｜DSML｜tool_calls>` and `</｜DSML｜tool_calls>`.",
        "<think>a</think> <｜end▁of▁sentence｜>",
    ],
)
def test_markup_in_a_value_stays_there(grammar: str, value: str) -> None:
    message = read(grammar, dsml(invoke(parameter("city", value), parameter("days", "7", ' string="false"'))))
    assert arguments(message) == [{"city": value, "days": 7}]
    assert set(kinds(message)) <= {"ambiguous_value"}


def steps(*pieces: str) -> list[tuple[str, list[int]]]:
    """Pieces of V4's tokens: `｜DSML｜` is one, unless the piece begins with a `~`, and all else is letters."""
    return [
        (piece.lstrip("~"), [17, *[128825] * piece.count("｜DSML｜")] if piece[0] != "~" else [17]) for piece in pieces
    ]


def test_token_ids_tell_a_tag_from_its_letters_in_a_value() -> None:
    quoted = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    begin = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
    end = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    for grammar, tokens in (
        ("deepseek_v4", steps(begin, f"~{quoted}", end)),
        ("deepseek_v41", steps(begin, "~x", f"~{quoted}", end)),
    ):
        parser = StreamParser(grammar, TOOLS)
        events = [event for text, ids in tokens for event in parser.feed(text, ids)]
        message = fold([*events, *parser.finish()])
        assert arguments(message)[0]["city"].endswith(quoted)
        assert message.violations == ()


@pytest.mark.parametrize("grammar", ["deepseek_v32", "deepseek_v4"])
@pytest.mark.parametrize("also_ends", [True, False])
def test_a_prefix_in_front_of_a_tags_name_is_a_drift(grammar: str, also_ends: bool) -> None:
    good = good_call(grammar, "Bern", 2)
    token = DSML_TAGS[grammar][0]
    text = good.replace(f"<{token}", f"<{token}r:")
    text = text.replace(f"</{token}", f"</{token}r:") if also_ends else text
    message, expected = (parse(each, grammar, TOOLS) for each in (text, good))
    assert [call.arguments for call in message.tool_calls] == [call.arguments for call in expected.tool_calls]
    assert [fault.kind for fault in message.violations] == ["drifted_marker"]
