"""Edge cases of GLM's pairs and of Hy3's wrapper that the conformance rows do not hold."""

from __future__ import annotations

import json

import pytest

from serve.parsing import GRAMMARS, ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import FORMATS, TOOLS, good_call, wrapped

LETTER = 17  # the id of a token that is no marker
FREE = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]


def call(*pairs: tuple[str, str], name: str = "get_weather") -> str:
    return f"<tool_call>{name}{''.join(FORMATS['glm47'].argument(key, value) for key, value in pairs)}</tool_call>"


def called(message: ParsedMessage) -> list[tuple[str, object]]:
    return [(each.name, json.loads(each.arguments)) for each in message.tool_calls]


def kinds(message: ParsedMessage) -> list[str]:
    return [fault.kind for fault in message.violations]


def with_ids(grammar: str, *pieces: str) -> ParsedMessage:
    """Reads pieces of which those that are one marker are its token, and all others are letters."""
    ids = {marker: token for token, marker in GRAMMARS[grammar].token_ids.items()}
    parser = StreamParser(grammar, TOOLS)
    events = [event for piece in pieces for event in parser.feed(piece, [ids.get(piece, LETTER)])]
    return fold([*events, *parser.finish()])


@pytest.mark.parametrize(
    "value",
    ["  two\n\nlines\n", "a < b && b > c", "<b>bold</b>", "", "\n", "</tool", call(("city", "Bern")), "`</arg_value>`"],
)
def test_a_value_is_all_that_stands_between_its_tags(value: str) -> None:
    assert called(parse(call(("city", value)), "glm47", TOOLS)) == [("get_weather", {"city": value})]


@pytest.mark.parametrize(
    "value",
    ["x</arg_value></tool_call>", "</arg_value><arg_key>days</arg_key><arg_value>2", "a<tool_call>", "a<arg_value>"],
)
def test_token_ids_decide_which_tags_in_a_value_are_real(value: str) -> None:
    pieces = cases.units(call(("city", "@")))
    place = pieces.index("@")
    message = with_ids("glm47", *pieces[:place], value, *pieces[place + 1 :])
    assert (called(message), message.violations) == ([("get_weather", {"city": value})], ())


@pytest.mark.parametrize("marker", ["<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>", "</arg_key>"])
def test_a_real_tag_in_a_value_that_was_not_closed_ends_it_or_is_reported(marker: str) -> None:
    message = with_ids("glm47", *cases.units("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Be"), marker, "x")
    assert message.tool_calls[0].arguments.startswith('{"city": "Be')
    assert {"malformed_call", "unfinished_call", "drifted_marker"} & set(kinds(message))


@pytest.mark.parametrize("name", ["get weather", "get<weather", "a=b", '"f"', "<b>"])
def test_a_name_that_holds_markup_makes_no_call(name: str) -> None:
    text = call(("city", "Bern"), name=name)
    message = parse(text, "glm47", TOOLS)
    assert (message.tool_calls, message.content) == ((), text)
    assert message.violations


def test_an_undeclared_tool_is_called_and_reported() -> None:
    message = parse(call(("city", "Bern"), name="other"), "glm47", TOOLS)
    assert (called(message), kinds(message)) == ([("other", {"city": "Bern"})], ["unknown_tool"])


def test_a_key_that_holds_markup_is_reported_under_any_schema() -> None:
    for tools, name in ((TOOLS, "get_weather"), (FREE, "run")):
        assert "unknown_argument" in kinds(parse(call(("city<", "Bern"), name=name), "glm47", tools))


def test_a_call_that_is_cut_anywhere_is_unfinished() -> None:
    text = call(("city", "Bern"), ("days", "2"))
    for place in range(len("<tool_call>"), len(text) - 1):
        message = parse(text[:place], "glm47", TOOLS)
        assert "unfinished_call" in kinds(message), text[:place]
        assert not any(each.arguments in ("", "{}") for each in message.tool_calls)


def test_a_call_whose_end_is_missing_before_the_next_is_read_and_reported() -> None:
    text = call(("city", "Bern")).removesuffix("</tool_call>") + call(("city", "Rome"))
    message = parse(text, "glm47", TOOLS)
    assert [arguments for _, arguments in called(message)] == [{"city": "Bern"}, {"city": "Rome"}]
    assert kinds(message) == ["unfinished_call"]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("behind", ["", "\n", call(("city", "Rome"))])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_value_without_its_end_runs_to_the_next_tag(lost: int, behind: str, size: int) -> None:
    first, second, rest = call(("city", "Bern"), ("days", "2")).split("</arg_value>")
    text = (f"{first}{second}</arg_value>{rest}" if lost == 0 else f"{first}</arg_value>{second}{rest}") + behind
    message = cases.stream(cases.grouped(text, size), grammar="glm47", tools=TOOLS)
    assert called(message)[0] == ("get_weather", {"city": "Bern", "days": 2})
    assert [(fault.kind, fault.index) for fault in message.violations] == [("drifted_marker", 0)]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_without_their_end_are_whole_unless_the_template_writes_newlines_itself(size: int) -> None:
    """Files that agents write end in a newline."""
    text = call(("city", "one\ntwo\n"), ("days", "2")).replace("</arg_value><", "<", 1)
    message = cases.stream(cases.grouped(text, size), grammar="glm47", tools=TOOLS)
    assert called(message) == [("get_weather", {"city": "one\ntwo\n", "days": 2})]
    assert kinds(message) == ["drifted_marker"]
    spaced = cases.stream(cases.grouped(text.replace("><", ">\n<"), size), grammar="glm47", tools=TOOLS)
    assert "malformed_call" in kinds(spaced)


@pytest.mark.parametrize("value", ["", "Bern\n", "one\ntwo ", "\n\n", "the tag <arg_value> here", "half</arg_val"])
def test_a_value_without_its_end_that_may_not_be_whole_is_in_doubt(value: str) -> None:
    """A newline may be the value's or the template's; a tag may be quoted."""
    text = call(("city", value), ("days", "2")).replace("</arg_value><", "<", 1)
    message = parse(text, "glm47", TOOLS)
    assert called(message) == [("get_weather", {"city": value, "days": 2})]
    assert {"malformed_call", "ambiguous_value"} & set(kinds(message))


@pytest.mark.parametrize("behind", ["", "\n", call(("city", "Bern"))])
def test_a_value_end_behind_the_name_of_a_tool_is_one_too_many(behind: str) -> None:
    """As GLM 5 ends calls without arguments."""
    message = parse(f"<tool_call>run</arg_value></tool_call>{behind}", "glm47", [*TOOLS, *FREE])
    assert called(message) == [("run", {}), ("get_weather", {"city": "Bern"})][: 2 if behind.strip() else 1]
    assert kinds(message)[0] == "stray_marker"
    assert called(parse("<tool_call>rm</arg_value></tool_call>", "glm47", [*TOOLS, *FREE])) == []


def test_a_key_without_a_value_is_reported() -> None:
    message = parse("<tool_call>get_weather<arg_key>city</arg_key></tool_call>", "glm47", TOOLS)
    assert kinds(message) == ["malformed_call", "missing_argument"]


@pytest.mark.parametrize(
    "text", ["A <tool_call> begins it.", "Put `<tool_call>` first and `<arg_key>` next.", "<tool_call"]
)
def test_prose_may_name_the_tags(text: str) -> None:
    message = parse(text, "glm47", TOOLS)
    assert (message.content, message.violations) == (text, ())


def test_reasoning_may_show_a_call_of_a_tool_that_does_not_exist() -> None:
    thought = "I write <tool_call>NAME</tool_call>."
    message = parse(f"{thought}</think>{call(('city', 'Bern'))}", "glm47", TOOLS, thinking=True)
    assert (message.reasoning, len(message.tool_calls), message.violations) == (thought, 1, ())
    real = parse(f"I call it.<tool_call>get_weather</tool_call>{call(('city', 'Rome'))}", "glm47", TOOLS, thinking=True)
    assert [name for name, _ in called(real)] == ["get_weather", "get_weather"]


@pytest.mark.parametrize("lost", ["<tool_calls{}>", "</tool_calls{}>", "<tool_sep{}>"])
def test_hy3_reads_its_calls_without_what_stands_around_them(lost: str) -> None:
    text = wrapped("hy_v3", good_call("hy_v3", "Bern", 1))
    message = parse(text.replace(lost.format(":opensource"), ""), "hy_v3", TOOLS)
    assert called(message) == [("get_weather", {"city": "Bern", "days": 1})]
    assert message.content is None


@pytest.mark.parametrize("grammar", ["hy_v3", "hy_v4"])
def test_an_empty_wrapper_is_a_dropped_call_and_a_list_in_it_is_none(grammar: str) -> None:
    empty = wrapped(grammar, "")
    assert [(fault.kind, fault.hidden) for fault in parse(empty, grammar, TOOLS).violations] == [
        ("malformed_call", True)
    ]
    listed = '[{"name": "get_weather"}]'.join(tag.strip() for tag in FORMATS[grammar].wrapper)
    message = parse(listed, grammar, TOOLS)
    assert (message.content, kinds(message)) == (listed, ["malformed_call"])


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("glm47", "<tool_call>get_weather\n@\n</tool_call>"),
        ("glm47", "<tool_call>get_weather@</tool_call>"),
        ("hy_v3", "<tool_calls>\n<tool_call>get_weather<tool_sep>\n@</tool_call>\n</tool_calls>"),
        ("hy_v3", "<tool_call:opensource>get_weather<tool_sep:opensource>@<end_of_tool_call:opensource>"),
        ("hy_v4", "<tool_call:6124c78e>get_weather@</tool_call:6124c78e>"),
    ],
)
def test_an_object_in_the_place_of_all_pairs_holds_the_arguments(grammar: str, text: str) -> None:
    held = '{"city": "Bern </tool_call>", "days": 2}'
    message = parse(text.replace("@", held), grammar, TOOLS)
    assert [(each.name, each.arguments) for each in message.tool_calls] == [("get_weather", held)]
    assert message.violations == ()


def test_an_object_behind_a_word_that_is_no_tool_is_no_call() -> None:
    text = '<tool_call>Sure: {"name": "get_weather"}</tool_call>'
    message = parse(text, "glm47", TOOLS)
    assert (message.content, message.tool_calls) == (text, ())


LONGCAT = (
    "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Bern"
    "</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>2</longcat_arg_value>\n"
    "</longcat_tool_call>"
)
FLASH_CHAT = (
    '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}\n</longcat_tool_call>'
)


@pytest.mark.parametrize("written", [LONGCAT, FLASH_CHAT], ids=["pairs", "an object"])
@pytest.mark.parametrize("behind", ["", "\n", "\nI look.\n"])
def test_longcat_thinks_in_its_own_tags_and_calls_in_them(written: str, behind: str) -> None:
    text = f"I'll call it.\n</longcat_think>{behind}{written}\n{written}"
    message = parse(text, "longcat", TOOLS, thinking=True)
    assert message == cases.stream(text, grammar="longcat", tools=TOOLS, thinking=True)
    assert (message.reasoning, (message.content or "").strip()) == ("I'll call it.", behind.strip())
    assert (called(message), message.violations) == ([("get_weather", {"city": "Bern", "days": 2})] * 2, ())


def test_longcat_opens_its_thoughts_itself_where_the_prompt_did_not_and_may_think_alone() -> None:
    message = parse("<longcat_think>\nHm.\n</longcat_think>\nIt is 4.", "longcat", TOOLS)
    assert ((message.reasoning or "").strip(), message.content, message.violations) == ("Hm.", "It is 4.", ())


@pytest.mark.parametrize("opening", ["\n<arg_value>", " </arg_key>", "\n", " </arg_key>\n<arg_value>"])
@pytest.mark.parametrize("value", ["<\n</think>\n", "a\nb\n", "a\n\nb\n\n"])
def test_a_text_without_its_end_tag_is_whole_or_not_however_its_key_was_cut(opening: str, value: str) -> None:
    text = f"<tool_call>get_weather<arg_key>city{opening}{value}{FORMATS['glm47'].argument('days', 3)}</tool_call>"
    message = parse(text, "glm47", TOOLS)
    assert message == cases.stream(text, grammar="glm47", tools=TOOLS)
