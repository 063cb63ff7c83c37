"""What goes out of arguments that are still growing is always a beginning of arguments that are right."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.call_check import suspicion
from serve.guard.core.live_prefix import LivePrefix
from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import Budget

Json = dict[str, Any]
NAMES = ("a", "b", 'q"\\', "é")
MARKERS = (
    "</tool_call>",
    "<tool_call>",
    "<|im_end|>",
    "</function>",
    "◁/think▷",
    "<｜DSML｜",
    "<|tool_call_end|>",
    "<p>",
)
TEXTS = st.lists(st.text('ab <\\"/é\n☃𝄞◁', max_size=6) | st.sampled_from(MARKERS), max_size=3).map("".join)


def live(schema: Any, pieces: Sequence[str], *, strict: bool = False) -> tuple[str, LivePrefix]:
    """Returns all that may go out of arguments that come in pieces."""
    prefix = LivePrefix(Schema(schema, strict=strict).outline(), Budget(10.0))
    out = ""
    for piece in pieces:
        prefix.feed(piece)
        out += prefix.take()
    return out + rest_of(prefix), prefix


def rest_of(prefix: LivePrefix) -> str:
    """Returns what waits for more, so that it goes out in fewer pieces."""
    out = ""
    for _ in range(100):
        out += prefix.take()
    return out


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Draws the pieces of a text."""
    size = draw(st.sampled_from([1, 2, 3, 7, 50]))
    return [text[at : at + size] for at in range(0, len(text), size)]


# A schema, and a value that it accepts.


@st.composite
def texts(draw: st.DrawFn) -> tuple[Json, Any]:
    kind = draw(st.sampled_from(["plain", "long", "short", "pattern", "enum", "const"]))
    value = draw(TEXTS)
    match kind:
        case "long":
            return {"type": "string", "minLength": len(value)}, value
        case "short":
            return {"type": "string", "maxLength": len(value) + draw(st.integers(0, 2))}, value
        case "pattern":
            return {"type": "string", "pattern": "^a+$"}, draw(st.sampled_from(["a", "aaa"]))
        case "enum":
            return {"enum": [value, "other", 5]}, value
        case "const":
            return {"const": value}, value
    return {"type": "string"}, value


@st.composite
def scalars(draw: st.DrawFn) -> tuple[Any, Any]:
    number = draw(st.integers(-1000, 1000))
    return draw(
        st.sampled_from(
            [
                ({"type": "integer"}, number),
                ({"type": "integer", "minimum": number, "maximum": number + 12}, number + 3),
                ({"type": "number"}, number / 8),
                ({"type": ["number", "null"], "multipleOf": 0.5}, None),
                ({"type": "boolean"}, True),
                ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
                ({"type": "string", "nullable": True}, "text"),
                (True, {"any": [number, "thing", None]}),
                ({}, "anything"),
                ({"oneOf": [{"type": "integer"}, {"type": "string", "minLength": 1}]}, "x"),
                ({"not": {"type": "string"}}, 5),
            ]
        )
    )


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    schema, value = draw(inner)
    times = draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["plain", "bounded", "tuple"]))
    if kind == "tuple":
        return {"type": "array", "prefixItems": [schema, {"type": "null"}], "items": False}, [value, None]
    bounds = {"minItems": max(0, times - 1), "maxItems": times + 1} if kind == "bounded" else {}
    return {"type": "array", "items": schema, **bounds}, [value] * times


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    members = {name: draw(inner) for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))}
    there = [name for name in members if draw(st.booleans())]
    schema: Json = {"type": "object", "properties": {name: schema for name, (schema, _) in members.items()}}
    schema["required"] = [name for name in there if draw(st.booleans())]
    value = {name: members[name][1] for name in there}
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    elif draw(st.booleans()):
        schema["additionalProperties"] = {"type": "string"}
        value["more"] = draw(TEXTS)
    if draw(st.integers(0, 5)) == 0:
        schema["maxProperties"] = len(value) + 1
    return schema, value


INNER = st.recursive(texts() | scalars(), lambda below: lists(below) | objects(below), max_leaves=5)


@st.composite
def documents(draw: st.DrawFn) -> tuple[Any, Any]:
    schema, value = draw(objects(INNER))
    if draw(st.booleans()):
        schema = {
            **schema,
            "properties": {**schema["properties"], "ref": {"$ref": "#/$defs/d"}},
            "$defs": {"d": schema},
        }
        value = {**value, "ref": value}
    return schema, value


def dumped(draw: st.DrawFn, value: Any) -> str:
    return json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))


@given(st.data())
def test_of_right_arguments_all_goes_out_but_their_end(data: st.DataObject) -> None:
    schema, value = data.draw(documents())
    text = dumped(data.draw, value)
    out, prefix = live(schema, data.draw(cut(text)))
    assert text.startswith(out)
    assert prefix.complete
    assert out != text
    undeclared = "additionalProperties" not in schema and value.keys() - schema["properties"].keys()
    odd = undeclared or suspicion(text, value) is not None or any(map(doubtful_key, keys_in(value)))
    if "maxProperties" not in schema and not odd:
        assert out.rstrip() == text[:-1].rstrip()


def doubtful_key(key: str) -> bool:
    return "<" in key


def keys_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_in(each)


@given(st.data())
def test_whatever_comes_what_went_out_can_be_completed_to_a_right_value(data: st.DataObject) -> None:
    schema, value = data.draw(documents())
    text = dumped(data.draw, value)
    damage = data.draw(st.sampled_from(["cut", "swapped", "inserted", "another"]))
    place = data.draw(st.integers(0, len(text)))
    if damage == "cut":
        text = text[:place] + text[place + data.draw(st.integers(1, 9)) :]
    elif damage == "inserted":
        junk = st.sampled_from(['"', "{", "}", ",", ":", "[", "]", "1", "null", '"a":1,', '"zz":0,', *MARKERS])
        text = text[:place] + data.draw(junk) + text[place:]
    elif damage == "swapped":
        text = text.replace("true", "1").replace(":", ": [", 1)
    else:
        text = dumped(data.draw, data.draw(documents())[1])
    out, _ = live(schema, data.draw(cut(text)))
    assert text.startswith(out)
    if out:
        whole = completed(out, schema)
        jsonschema.Draft202012Validator(plain_of(schema)).validate(json.loads(whole))
        if not any(marker in json.dumps(schema, ensure_ascii=False) for marker in MARKERS):  # it may demand one
            assert suspicion(whole, json.loads(whole)) is None


def plain_of(schema: Any) -> Any:
    """Returns a schema without what only OpenAPI knows."""
    if isinstance(schema, dict):
        found = {name: plain_of(value) for name, value in schema.items() if name != "nullable"}
        return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") is True else found
    return [plain_of(each) for each in schema] if isinstance(schema, list) else schema


class Ended(Exception):
    """The text ends; `args` has what completes the value."""


def completed(text: str, schema: Any) -> str:
    """Returns the beginning of a value, completed as its schema has it: slow, and by another way than the guard's."""
    with pytest.raises(Ended) as ended:
        past_value(text, 0, schema, schema)
    return text + str(ended.value.args[0])


def resolved(schema: Any, root: Any) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = root["$defs"]["d"]
    return schema


def branch(schema: Any, root: Any, sign: str) -> Any:
    """Returns the way of a schema that is for values with a first character."""
    schema = resolved(schema, root)
    names = {'"': "string", "{": "object", "[": "array"}
    for way in schema.get("anyOf", schema.get("oneOf", ())) if isinstance(schema, dict) else ():
        if way.get("type") == names.get(sign):
            return way
    return schema


def past_space(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip())


def past_value(text: str, place: int, schema: Any, root: Any) -> int:
    place = past_space(text, place)
    schema = branch(schema, root, text[place])
    known = schema if isinstance(schema, dict) else {}
    if text[place] == '"':
        return past_string(text, place, known.get("minLength", 0))
    if text[place] not in "{[":
        found = re.compile(r"[-+.0-9a-zA-Z]+").match(text, place)
        assert found is not None
        if found.end() == len(text):
            raise Ended("")
        return found.end()
    return past_object(text, place, known, root) if text[place] == "{" else past_list(text, place, known, root)


def past_string(text: str, place: int, least: int) -> int:
    found = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL).match(text, place)
    if found is not None:
        return found.end()
    for end in ("", "n", "u0041", "0041", "041", "41", "1"):
        try:
            value = json.loads(f'{text[place:]}{end}"')
        except ValueError:
            continue
        raise Ended(f'{end}{"x" * (least - len(value))}"')
    raise AssertionError(text)


def past_object(text: str, place: int, schema: Json, root: Any) -> int:
    missing = set(schema.get("required", ()))
    place = past_space(text, place + 1)
    while True:
        if place == len(text):
            raise Ended(end_of_object(text, missing, schema, root))
        if text[place] == "}":
            return place + 1
        if text[place] == ",":
            place = past_space(text, place + 1)
        key_end = past_string(text, place, 0)
        name = json.loads(text[place:key_end])
        missing.discard(name)
        place = past_space(text, key_end)
        assert text[place] == ":"
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
        try:
            place = past_value(text, place + 1, inner, root)
        except Ended as rest:
            more = "".join(f", {json.dumps(name)}: {sample(schema, name, root)}" for name in sorted(missing))
            raise Ended(f"{rest.args[0]}{more}}}") from None
        place = past_space(text, place)


def end_of_object(text: str, missing: set[str], schema: Json, root: Any) -> str:
    comma = "" if text.rstrip().endswith("{") or not missing else ", "
    return comma + ", ".join(f"{json.dumps(name)}: {sample(schema, name, root)}" for name in sorted(missing)) + "}"


def sample(schema: Json, name: str, root: Any) -> str:
    inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
    return json.dumps(sample_of(resolved(inner, root), root))


def sample_of(schema: Any, root: Any) -> Any:
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return None
    for way in schema.get("anyOf", schema.get("oneOf", ())):
        return sample_of(way, root)
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else schema["enum"][1]
    kinds = schema.get("type", "null")
    match kinds if isinstance(kinds, str) else kinds[0]:
        case "string":
            return "a" if "pattern" in schema else "x" * schema.get("minLength", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            first = [sample_of(each, root) for each in schema.get("prefixItems", ())]
            return first or [sample_of(schema.get("items", True), root)] * schema.get("minItems", 0)
        case "object":
            members = schema.get("properties", {})
            return {name: sample_of(members.get(name, True), root) for name in schema.get("required", ())}
    return None


def past_list(text: str, place: int, schema: Json, root: Any) -> int:
    items = 0
    place = past_space(text, place + 1)
    while True:
        if place == len(text):
            raise Ended(more_items(text, items, schema, root) + "]")
        if text[place] == "]":
            return place + 1
        if text[place] == ",":
            place += 1
        first = schema.get("prefixItems", [])
        inner = first[items] if items < len(first) else schema.get("items", True)
        items += 1
        try:
            place = past_value(text, place, inner, root)
        except Ended as rest:
            raise Ended(f"{rest.args[0]}{more_items('[0', items, schema, root)}]") from None
        place = past_space(text, place)


def more_items(text: str, items: int, schema: Json, root: Any) -> str:
    comma = "" if text.rstrip().endswith("[") else ", "
    more = [sample_of(schema.get("items", True), root)] * (schema.get("minItems", 0) - items)
    return comma + ", ".join(map(json.dumps, more)) if more else ""


def test_a_schema_that_multiplies_is_read_in_time() -> None:
    names = [f"m{number}" for number in range(20)]
    definitions = {
        f"d{depth}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{depth + 1}"} for name in names},
            "required": names,
        }
        for depth in range(10)
    }
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d10": {"type": "string"}}}
    out, _ = live(schema, ['{"m0": {"m1": {"m2": '])
    assert out == '{"m0": {"m1": {'


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 1, "items": False}}, "required": ["a"]},
    ],
)
def test_of_a_schema_that_nothing_satisfies_nothing_goes_out(schema: Json) -> None:
    assert live(schema, ['{"b": "text", "a": "text"'])[0] == ""


def test_a_format_counts_where_the_schema_is_strict() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    assert live(schema, ['{"day": "some'])[0] == '{"day": "some'
    assert live(schema, ['{"day": "some', 'day", "'], strict=True)[0] == "{"
    assert live(schema, ['{"day": "2026-01-31', '", "'], strict=True)[0] == '{"day": "2026-01-31"'


def test_a_long_value_that_only_its_end_decides_waits_for_the_whole_call() -> None:
    schema = {"type": "object", "properties": {"a": {}, "code": {"type": "string", "pattern": "x$"}, "b": {}}}
    out, prefix = live(schema, ['{"a": 1, "code": "', *["text"] * 2000, 'x", "b": 2'])
    assert out == '{"a": 1'
    assert prefix.stuck


@pytest.mark.parametrize("number", ["1e999", "1" * 301, "-", "1.", "NaN"])
def test_a_number_that_is_none_does_not_go_out(number: str) -> None:
    assert live(True, ['{"a": ', number, ', "b": '])[0] == "{"


def test_work_is_linear_in_the_length_however_it_is_cut() -> None:
    texts = ["x", "<", "\\u4f60", "\\n", '", "b": "', "<b>"]
    schema = {"type": "object", "properties": {"b": {"type": "string", "maxLength": 10**9}}}
    for text in texts:
        prefix = live(schema, ['{"a": "', *[text] * 20_000])[1]
        assert not prefix.broken
