"""MiniMax's formats beyond the conformance rows: damage of every kind, and what M3's elements become."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from serve.parsing import ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing.formats import MARK

TOOLS = [
    {"type": "function", "function": {"name": "order", "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "to": {"type": "object", "properties": {"zip": {"type": "integer"}, "lines": {"type": "array"}}},
        },
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
M2 = (
    "Hm.\n</think>\n\nI order.\n<minimax:tool_call>\n"
    '<invoke name="order">\n<parameter name="city">Bern</parameter>\n<parameter name="days">2</parameter>\n'
    '<parameter name="tags">["a", "b"]</parameter>\n</invoke>\n<invoke name="ping">\n</invoke>\n'
    '<invoke name="order">\n<parameter name="city">Rome</parameter>\n</invoke>\n</minimax:tool_call>'
)
M3 = (
    "<mm:think>Hm.</mm:think>I order.<M><tool_call>\n"
    '<M><invoke name="order"><M><city>Bern<M></city><M><days>2<M></days><M><tags><M><item>a<M></item>'
    "<M><item>b<M></item><M></tags><M><to><M><zip>3000<M></zip><M><lines><M><item>x<M></item><M></lines><M></to><M></invoke>\n"
    '<M><invoke name="ping"><M></invoke>\n<M><invoke name="order"><M><city>Rome<M></city><M></invoke>\n<M></tool_call>'
).replace("<M>", MARK)
OUTPUTS = {"minimax_m2": M2, "minimax_m3": M3}
MARKUP = {
    "minimax_m2": re.compile(r"</?(?:minimax:tool_call|invoke|parameter)[^<>]*>"),
    "minimax_m3": re.compile(re.escape(MARK) + r"</?\w+[^<>]*>"),
}


def read(grammar: str, text: str) -> ParsedMessage:
    return parse(text, grammar, TOOLS, grammar == "minimax_m2")


def calls(message: ParsedMessage) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in message.tool_calls]


def damaged(grammar: str) -> Iterator[tuple[str, str]]:
    """The output with one marker dropped, doubled, replaced by another, or altered in one letter."""
    text = OUTPUTS[grammar]
    found = list(MARKUP[grammar].finditer(text))
    spellings = sorted({match.group() for match in found})
    for match in found:
        before, marker, behind = text[: match.start()], match.group(), text[match.end() :]
        yield f"dropped {match.start()}", before + behind
        yield f"doubled {match.start()}", before + marker * 2 + behind
        if marker.startswith(MARK):
            yield f"no mark {match.start()}", before + marker.removeprefix(MARK) + behind
            yield f"no tag {match.start()}", before + MARK + behind
            yield f"two marks {match.start()}", before + MARK + marker + behind
        for other in spellings:
            if "invoke name" in other and "invoke name" in marker:
                continue  # another name is another call, and no damage that shows
            yield f"{other} for {match.start()}", before + other + behind
        for place in range(len(marker)):
            yield f"letter {place} of {match.start()}", before + marker[:place] + marker[place + 1 :] + behind
            yield f"sign {place} of {match.start()}", before + marker[:place] + "#" + marker[place + 1 :] + behind


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_an_output_with_one_damaged_marker_has_the_same_calls_or_a_violation(grammar: str) -> None:
    good = read(grammar, OUTPUTS[grammar])
    assert (good.content, good.reasoning, good.violations) == ("I order.", "Hm.", ())
    assert len(good.tool_calls) == 3
    silent = [
        (how, calls(message))
        for how, text in damaged(grammar)
        if not (message := read(grammar, text)).violations and calls(message) != calls(good)
    ]
    assert silent == []


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_an_output_that_is_cut_among_its_calls_is_reported(grammar: str) -> None:
    text = OUTPUTS[grammar]
    end = len(text) - len(MARKUP[grammar].findall(text)[-1])
    for place in range(text.index("tool_call>") + len("tool_call>"), end + 2):
        assert read(grammar, text[:place]).violations, text[:place]


def m3(*elements: str, name: str = "order") -> str:
    body = "".join(elements).replace("<M>", MARK)
    return f'{MARK}<tool_call>\n{MARK}<invoke name="{name}">{body}{MARK}</invoke>\n{MARK}</tool_call>'


@pytest.mark.parametrize(
    ("elements", "arguments"),
    [
        (f"{MARK}offer.docx{MARK}</city>", {"city": "offer.docx"}),
        (f"city>offer.docx{MARK}</city>", {"city": "offer.docx"}),
        ("<city>Bern</city><days>2</days>", {"city": "Bern", "days": 2}),
        (f"<M><city>Bern<M></city><to>{MARK}3000{MARK}</zip><M></to>", {"city": "Bern", "to": {"zip": 3000}}),
        ("<M><city>Bern<M><days>2<M></days>", {"city": "Bern", "days": 2}),
        ("<M><city>Bern<M></city><M><tags><M><item>a<M></item>", {"city": "Bern", "tags": ["a"]}),
    ],
)
def test_what_deployed_checkpoints_write_is_mended_and_reported(elements: str, arguments: dict[str, Any]) -> None:
    message = parse(m3(elements.replace("<to>", "<M><to>")), "minimax_m3", TOOLS)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [arguments]
    assert {fault.kind for fault in message.violations} <= {"drifted_marker", "stray_marker"} != set()
    assert message.violations


@pytest.mark.parametrize(
    ("schema", "elements", "value"),
    [
        ({"type": "array"}, "<M><x><M></x>", []),
        ({"type": ["object", "null"]}, "<M><x><M></x>", {}),
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, "<M><x><M></x>", ""),
        ({"type": "string"}, "<M><x> 7 \n<M></x>", " 7 \n"),
        ({"items": {"type": "integer"}}, "<M><x><M><item>7<M></item><M></x>", [7]),
        ({"type": "array", "items": {"type": "string"}}, "<M><x>a<M></x><M><x>b<M></x>", ["a", "b"]),
        ({"$ref": "#/$defs/P"}, "<M><x><M><n>7<M></n><M></x>", {"n": 7}),
        ({"type": "object"}, "<M><x><M><t>a<M></t><M><t>b<M></t><M></x>", {"t": ["a", "b"]}),
        ({}, "<M><x><M><item>a<M></item><M></x>", ["a"]),
        ({}, "<M><x><M><item>a<M></item><M><t>b<M></t><M></x>", {"item": "a", "t": "b"}),
        ({"type": "object"}, "<M><x><M><item>a<M></item><M></x>", {"item": "a"}),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "<M><x><M><a>1.5<M></a><M></x>", {"a": 1.5}),
    ],
)
def test_an_element_becomes_what_its_schema_says(schema: dict[str, Any], elements: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"x": schema, "-n": {"type": "integer"}},
                  "$defs": {"P": {"type": "object", "properties": {"n": {"type": "integer"}}}}}  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    message = parse(m3(elements, "<M><-n>3<M></-n>", name="f"), "minimax_m3", tools)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"x": value, "-n": 3}]
    assert message.violations == ()


def test_markup_that_a_string_quotes_whole_stays_in_it() -> None:
    quoted = m3("<M><city>Rome<M></city>")
    message = parse(m3(f"<M><city>see {quoted} there<M></city>"), "minimax_m3", TOOLS)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"city": f"see {quoted} there"}]
    assert message.violations == ()
    m2 = M2[M2.index("<minimax:tool_call>") :]
    text = (
        f'<minimax:tool_call><invoke name="ping"><parameter name="a">x {m2} y</parameter></invoke></minimax:tool_call>'
    )
    message = parse(text, "minimax_m2", TOOLS)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"a": f"x {m2} y"}]


@pytest.mark.parametrize("stops", ["</mm:think>", "</mm:think></mm:think>", "\n</mm:think>\n"])
def test_an_end_of_thinking_that_m3_writes_in_front_of_its_answer_is_none(stops: str) -> None:
    assert parse(f"{stops}Hello.", "minimax_m3", TOOLS).content == "Hello." or stops.endswith("\n")
    message = parse(stops + m3("<M><city>Bern<M></city>"), "minimax_m3", TOOLS)
    assert (message.content, message.reasoning, len(message.tool_calls)) == (None, None, 1)


def test_a_call_ends_reasoning_that_has_no_end_of_its_own() -> None:
    message = parse("<mm:think>I call it. " + m3("<M><city>Bern<M></city>") + "</mm:think>", "minimax_m3", TOOLS)
    assert (message.reasoning, len(message.tool_calls), message.violations) == ("I call it. ", 1, ())


def test_thinking_that_the_client_sent_back_as_content_is_reasoning_again() -> None:
    for thinking in (False, True):
        message = parse("<think>Hm.\n</think>\n\nBern.", "minimax_m2", TOOLS, thinking)
        assert (message.reasoning, message.content) == ("Hm.", "Bern.")


def test_a_string_of_m3_streams_while_it_is_written() -> None:
    parser = StreamParser("minimax_m3", TOOLS)
    early = fold(parser.feed(f'{MARK}<tool_call>{MARK}<invoke name="order">{MARK}<city>Be'))
    assert early.tool_calls[0].arguments == '{"city": "Be'


def test_a_bad_call_of_m3_does_not_take_the_next_one_with_it() -> None:
    text = m3("<M><city>Bern<M></city>").replace('<invoke name="order">', "<invoke>")
    text = text.replace(f"\n{MARK}</tool_call>", f'{MARK}<invoke name="ping">{MARK}</invoke>\n{MARK}</tool_call>')
    message = parse(text, "minimax_m3", TOOLS)
    assert calls(message) == [("ping", "{}")]
    assert message.violations


def test_elements_nested_without_end_cost_no_more_than_their_length_and_no_stack() -> None:
    deep = 3000
    message = parse(m3("<M><to>" + "<M><n>" * deep + "v" + "<M></n>" * deep + "<M></to>"), "minimax_m3", TOOLS)
    assert "malformed_arguments" in {fault.kind for fault in message.violations}
