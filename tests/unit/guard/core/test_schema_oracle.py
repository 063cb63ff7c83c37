"""Random schemas of all drafts are judged as `jsonschema` judges them."""

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import Budget, Cost, UnjudgedError, ValueSize, measure
from serve.guard.core.schema_pattern import translate
from serve.guard.core.schema_reading import Reading

AMPLE = 60.0  # seconds
ORACLES: dict[str, Any] = {
    "http://json-schema.org/draft-04/schema#": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema#": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema#": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
LEAVES = st.sampled_from([None, True, False, 0, 1, 1.0, 2, -3, 2.5, "", "a", "ab", "b"])
NAMES = st.sampled_from(["a", "b", "ab"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
COUNTS = st.integers(0, 3)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]{2}$", "^(?!a)", r"\w", "^$"])
NAME_LISTS = st.lists(NAMES, min_size=1, max_size=2, unique=True)


def schemas_of(inner: st.SearchStrategy[Any], uri: str) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(NAMES, inner, max_size=3)
    optional = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNTS),
        **dict.fromkeys(("minimum", "maximum"), COUNTS),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
        "required": NAME_LISTS,
        "properties": by_name,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "contains": inner,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": st.just("#/definitions/d"),
    }
    if "draft-04" in uri:
        optional |= dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), st.booleans())
    else:
        optional |= dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), COUNTS)
    if "2020-12" in uri:
        optional |= {"prefixItems": some, "items": inner}
    else:
        optional |= {"items": inner | some, "additionalItems": inner}
    if "/draft/" in uri:
        optional |= {
            "dependentRequired": st.dictionaries(NAMES, NAME_LISTS, max_size=2),
            "dependentSchemas": by_name,
            "minContains": COUNTS,
            "maxContains": COUNTS,
            "unevaluatedProperties": inner,
        }
    else:
        optional |= {"dependencies": st.dictionaries(NAMES, NAME_LISTS | inner, max_size=2)}
    if "2020-12" in uri:
        optional |= {"unevaluatedItems": inner}
    return st.fixed_dictionaries({}, optional=optional)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and a value."""
    uri = draw(st.sampled_from(sorted(ORACLES)))
    leaves = st.just({}) if "draft-04" in uri else st.booleans() | st.just({})
    inner: st.SearchStrategy[Any] = st.recursive(leaves, lambda each: schemas_of(each, uri), max_leaves=6)
    defined = draw(inner)
    schema = {
        **draw(schemas_of(inner, uri)),
        "$schema": uri,
        "definitions": {"d": {} if "$ref" in str(defined) else defined},  # no loop
    }
    return schema, draw(VALUES)


@given(case=cases())
def test_what_jsonschema_accepts_is_accepted_and_nothing_else(case: tuple[Any, Any]) -> None:
    schema, value = case
    try:
        accepted = ORACLES[schema["$schema"]](schema).is_valid(value)
    except TypeError:
        reject()  # jsonschema itself asks for the length of `items: true` where `additionalItems` stands beside it
    try:
        found = Schema(schema, strict=False, budget=Budget(AMPLE)).mismatch(value)
    except UnjudgedError as error:
        found = str(error)
    if found != "look-around beside unevaluated members":  # the only thing that is not judged here
        assert (found is None) is accepted


@given(case=cases())
def test_no_value_takes_more_than_is_said_of_all_that_are_written_in_as_many_characters(case: tuple[Any, Any]) -> None:
    schema, value = case
    try:
        cost = Cost(Reading(schema, strict=False, admit=lambda _: None).parts)
    except UnjudgedError:
        return
    size = measure(value, math.inf, AMPLE)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert cost.bound_s(ValueSize.most(len(text))) >= cost.bound_s(size), "a short one needs no measuring"


@given(text=st.text("ab01 -_.", max_size=6), pattern=PATTERNS | st.from_regex(r"\A[ab.]{1,3}[*+?]?\Z"))
def test_a_pattern_means_what_it_means_to_python_where_both_agree(text: str, pattern: str) -> None:
    expected = jsonschema.Draft202012Validator({"pattern": pattern}).is_valid(text)
    assert (Schema({"pattern": pattern}, strict=False).mismatch(text) is None) is expected


ECMA = {
    r"^\u{1F600}?a$": (["a", "😀a"], ["b"]),
    r"^\ud83d\ude00$": (["😀"], ["a"]),
    r"^[\ud800-\udfff]$": ([], ["a"]),
    r"^[\u0000-\uffff]+$": (["a", "中", "😀"], [""]),
    r"^[\u4e00-\u9fa5]+$": (["中文"], ["a"]),
    "^[^]*$": (["any\nthing"], []),
    "a[]": ([], ["a"]),
    r"^\/x\-[\w.-]+$": (["/x-a.b-c"], ["x"]),
    r"^[\d\-a]{2,3}$": (["1-", "a1-"], ["b", "1-aa"]),
    r"^[\w-.]$": (["-", ".", "a"], ["!"]),
    r"^[a-]$": (["-", "a"], ["b"]),
    r"^[\]\[]$": (["]", "["], ["a"]),
    "^[[a]$": (["[", "a"], ["b"]),
    "^[a&&b]$": (["a", "&", "b"], ["c"]),
    r"^[\D]$": (["a", "中"], ["1"]),
    r"^[^\D]$": (["1"], ["a"]),
    r"^[\s\S]$": (["\n", "中"], ["ab"]),
    r"^\d$": (["1"], ["\u0661"]),
    r"^\w$": (["a"], ["é"]),
    r"\bfoo\b": (["foo", "中文foo。", "éfoo"], ["afoo", "foo1"]),
    r"^.\B": (["ab", "é"], ["a", "aé"]),
    r"^\S$": (["a"], [" ", "\ufeff"]),
    r"^\p{L}+$": (["äb"], ["1"]),
    r"^[^\p{L}]$": (["1"], ["a"]),
    r"^.$": (["a", "\u0085"], ["\n", "\u2028"]),
    r"^\cA\x41\0$": (["\x01A\x00"], ["a"]),
    "^a{,3}$": (["a{,3}"], ["aa"]),
    "^{a}$": (["{a}"], ["a"]),
    r"^\<b\>$": (["<b>"], ["b"]),
    r"^(?<year>\d{4})-(?<month>\d\d)$": (["2020-01"], ["x"]),
    "^(?i)abc$": (["ABC"], ["x"]),
    r"\Aa\Z": (["a"], ["ab"]),
    r"^(a)\1$": (["aa"], ["ab"]),
    r"^(?<year>\d{4})-\k<year>$": (["2020-2020"], ["2020-2021"]),
    r"^(?:a)(x)(?=y)(?<q>['y]).*\k<q>0$": (["axyzy0"], ["axyzx0"]),
    r"^(?=.*[A-Z])(?=.*\d).{4,}$": (["Abc1"], ["abc1", "A1"]),
    r"(?<!x)y": (["ay"], ["xy"]),
}


@pytest.mark.parametrize(("pattern", "matching", "other"), [(name, *texts) for name, texts in ECMA.items()], ids=ECMA)
def test_a_pattern_is_ecmascripts(pattern: str, matching: list[str], other: list[str]) -> None:
    schema = Schema({"pattern": pattern}, strict=False, budget=Budget(AMPLE))
    assert [schema.mismatch(text) for text in matching] == [None] * len(matching)
    assert [schema.mismatch(text) for text in other] == ["$: pattern"] * len(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * 5_000,
        "(((a{1,99}){1,99}){1,99})",
        "[b-a]",
        "(?",
        ")",
        "[a",
        "\\",
        r"\y",
        r"\u{110000}",
        "a{1000000}",
        r"\k<a>(?<a>b)",
        r"\1(a)",
    ],
)
def test_what_is_no_pattern_or_too_large_is_unjudged(pattern: str) -> None:
    with pytest.raises(UnjudgedError):
        translate(pattern)
