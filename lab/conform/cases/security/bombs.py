"""Small or dense requests that cost a naive gateway seconds: another client's `/health` is answered meanwhile."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from lab.conform.bystander import slowest_meanwhile
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.conform.scripts import answering, call_completion, whole

_DOUBLINGS = 26
_DEPTH = 5_000
_DIGITS = 5_000

_Schema = dict[str, Any]
_Bomb = Callable[[Lab], Awaitable[CaseResult]]


def _doubling() -> _Schema:
    """Returns a schema of 1.3 kB whose naive evaluation takes 2^26 steps."""
    names = range(_DOUBLINGS)
    defs: _Schema = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in names}
    defs[f"d{_DOUBLINGS}"] = {"type": "object"}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def _text(depth: int) -> str:
    """Returns a deep schema as text: `json.dumps` would not encode it."""
    return '{"properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth


_SCHEMAS: dict[str, tuple[str, str]] = {
    "doubling": (json.dumps(_doubling()), '{"a":1}'),
    "pattern": (json.dumps({"properties": {"a": {"pattern": "^(a+)+$"}}}), json.dumps({"a": "a" * 40 + "!"})),
    "long pattern": (json.dumps({"properties": {"a": {"pattern": "(a|b?c)" * 40_000}}}), '{"a":"x"}'),
    "repetition": (json.dumps({"properties": {"a": {"pattern": "a{99999999999}"}}}), '{"a":"x"}'),
    "many patterns": (json.dumps({"properties": {f"p{n}": {"pattern": "^(a|a)*$"} for n in range(40)}}),
                      json.dumps({f"p{n}": "a" * 30 + "!" for n in range(40)})),
    "depth": (_text(_DEPTH), '{"a":1}'),
    "width": (json.dumps({"properties": {f"p{n}": {"type": "string", "minLength": 1} for n in range(20_000)}}), "{}"),
    "long number": ('{"properties":{"a":{"multipleOf":0.1}}}', '{"a":' + "7" * 400 + "}"),
    "odd identifier": ('{"$id":"http://[","type":"object"}', "{}"),
    "endless reference": ('{"$ref":"#"}', '{"a":1}'),
}  # fmt: skip
_MANY = 2_000
_ROWS = json.dumps({"a": list(range(_MANY))})
_MEMBERS = json.dumps({f"k{n}": n for n in range(_MANY)})


def _chain(link: Callable[[int], _Schema], start: str, links: int) -> str:
    """Returns a schema each of whose definitions leads to the next."""
    return json.dumps({"$defs": {f"d{n}": link(n) for n in range(links)}, "$ref": start})


def _branching(keyword: str) -> str:
    """Returns a schema that doubles by another keyword than `allOf`."""

    def link(number: int) -> _Schema:
        following = {"$ref": f"#/$defs/d{number + 1}"} if number < _DOUBLINGS else {"type": "object"}
        return (
            {"if": following, "then": following, "else": following} if keyword == "if" else {keyword: [following] * 2}
        )

    return _chain(link, "#/$defs/d0", _DOUBLINGS + 1)


# Keywords whose cost is not that of the schema's size: each is looked up, joined or applied again and again.
_KEYWORDS: dict[str, tuple[str, str]] = {
    "any of doubling": (_branching("anyOf"), "{}"),
    "one of doubling": (_branching("oneOf"), "{}"),
    "conditions doubling": (_branching("if"), "{}"),
    "a chain of ids": (_chain(lambda n: {"$id": f"urn:c{n}", "$ref": f"urn:c{n + 1}"}, "urn:c0", _MANY), "{}"),
    "a chain of anchors": (_chain(lambda n: {"$anchor": f"c{n}", "$ref": f"#c{n + 1}"}, "#c0", _MANY), "{}"),
    "relative ids": (json.dumps({"$id": "http://conform.example/a/", "$defs": {
        f"d{n}": {"$id": "../" * n + "b"} for n in range(400)}, "properties": {"a": {"$ref": "../../b"}}}), '{"a":1}'),
    "ids around a long one": (json.dumps({"$id": "http://conform.example/" + "a/" * 20_000, "$defs": {
        f"d{n}": {"$id": f"b{n}"} for n in range(400)}, "properties": {"a": {"$ref": "b1"}}}), '{"a":1}'),
    "many references": (json.dumps({"$defs": {"n": {"type": "integer"}}, "properties": {
        f"k{n}": {"$ref": "#/$defs/n"} for n in range(_MANY)}}), _MEMBERS),
    "dynamic references": (json.dumps({"$dynamicAnchor": "n", "allOf": [{"$dynamicRef": "#n"}]}), "{}"),
    "unevaluated properties": (json.dumps({"allOf": [{"properties": {f"k{n}": True}} for n in range(500)],
                                           "unevaluatedProperties": False}), _MEMBERS),
    "unevaluated items": (json.dumps({"properties": {"a": {
        "anyOf": [{"contains": {"const": n}} for n in range(100)], "unevaluatedItems": False}}}), _ROWS),
    "contains": (json.dumps({"properties": {"a": {"contains": {"contains": {"const": 1}}, "minContains": _MANY}}}),
                 json.dumps({"a": [list(range(100))] * 100})),
    "unique items": (json.dumps({"properties": {"a": {"uniqueItems": True}}}),
                     json.dumps({"a": [{"b": [n]} for n in range(_MANY)]})),
    "dependent names": (json.dumps({"dependentRequired": {f"k{n}": [f"k{m}" for m in range(100)] for n in range(100)}}),
                        _MEMBERS),
    "names": (json.dumps({"propertyNames": {"enum": [f"k{n}" for n in range(_MANY)]}}), _MEMBERS),
    "names by pattern": (json.dumps({"patternProperties": {r"^(\w+\s?)*$": {}}}), json.dumps({"a" * 40 + "!": 1})),
    "types": (json.dumps({"type": ["string"] * 10_000}), "{}"),
    "colliding numbers": (json.dumps({"properties": {"a": {"enum": [n * (2**61 - 1) for n in range(_MANY)]}}}),
                          '{"a":1}'),
    "remote reference": ('{"$ref":"http://203.0.113.7:1/schema"}', "{}"),
}  # fmt: skip
_ARGUMENTS = {
    "digits": '{"a":' + "7" * _DIGITS + "}",
    "brackets": '{"a":' + "[" * 2_000 + "]" * 2_000 + "}",
    "cut brackets": '{"a":' + "[" * 100_000,
    "cut numbers": '{"a":[' + "1," * 400_000,
    "cut objects": '{"a":[' + '{"b":{}},' * 100_000,
}


def _request(lab: Lab, mark: str, more: str) -> bytes:
    message = json.dumps([{"role": "user", "content": f"{mark} hello"}])
    return f'{{"model": {json.dumps(lab.model)}, "messages": {message}, {more}}}'.encode()


async def _blast(lab: Lab, more: str, arguments: str | None) -> str:
    """Returns what went wrong with one bomb; the empty text if nothing did."""
    answer = whole({"content": "hello"}) if arguments is None else call_completion(arguments)
    trial = lab.trial(answering(answer))
    body = _request(lab, trial.mark, more)
    reply, slowest = await slowest_meanwhile(lab, lab.send(body))
    if slowest >= lab.pace.others_s:
        return f"others waited {slowest:.2f} s"
    if reply.status in (0, 500):
        return f"{reply.summary()}"
    if arguments is not None and not reply.failed and reply.call[1] != arguments:
        return "the call was lost without an error"
    return ""


def _tool(schema: str) -> str:
    return f'"tools": [{{"type": "function", "function": {{"name": "look_up", "parameters": {schema}}}}}]'


async def _all(lab: Lab, bombs: dict[str, tuple[str, str | None]]) -> CaseResult:
    found = {name: await _blast(lab, *bomb) for name, bomb in bombs.items()}
    wrong = [f"{name}: {what}" for name, what in found.items() if what]
    return passed_if(not wrong, "; ".join(wrong) if wrong else f"{len(bombs)} held nobody up")


async def schemas(lab: Lab) -> CaseResult:
    return await _all(lab, {name: (_tool(schema), call) for name, (schema, call) in _SCHEMAS.items()})


async def keywords(lab: Lab) -> CaseResult:
    return await _all(lab, {name: (_tool(schema), call) for name, (schema, call) in _KEYWORDS.items()})


async def arguments(lab: Lab) -> CaseResult:
    return await _all(lab, {name: (_tool('{"type":"object"}'), text) for name, text in _ARGUMENTS.items()})


async def bodies(lab: Lab) -> CaseResult:
    """Bodies that are long to read: nothing in them is wrong."""
    numbers = ",".join(["1"] * 2**20)
    return await _all(
        lab,
        {
            "dense numbers": (f'"enable_speculative": true, "x": [{numbers}]', None),
            "5,000 digits": (f'"x": {"7" * _DIGITS}, "seed": 1', None),
            "brackets": (f'"x": {"[" * 500_000}{"]" * 500_000}', None),
            "escapes": (f'"x": "{chr(92)}u0041{(chr(92) + "u0041") * 300_000}"', None),
            "members": ('"x": {' + ",".join(f'"k{n}":0' for n in range(200_000)) + "}", None),
        },
    )


async def history(lab: Lab) -> CaseResult:
    def turn(number: int, text: str) -> str:
        function = json.dumps({"name": "look_up", "arguments": text})
        call = f'{{"id": "call_{number}", "type": "function", "function": {function}}}'
        result = f'{{"role": "tool", "tool_call_id": "call_{number}", "content": "x"}}'
        return f'{{"role": "assistant", "content": null, "tool_calls": [{call}]}}, {result}'

    def said(calls: list[str]) -> tuple[str, str | None]:
        mark = lab.trial().mark
        first = json.dumps({"role": "user", "content": mark})
        turns = ", ".join(turn(number, text) for number, text in enumerate(calls))
        return f'"messages": [{first}, {turns}]', None

    return await _all(
        lab,
        {
            "one call of 1 MB, cut": said(['{"a": "' + "x\\n" * 350_000]),
            "10,000 calls, cut": said(['{"a": [1, '] * 10_000),
            "a call of 50,000 brackets": said(['{"a": ' + "[" * 50_000]),
        },
    )


_SOURCE = "Algorithmic complexity, CWE-407"

CASES = (
    Case("bomb-bodies", "Bodies that are dense, deep or full of escapes hold nobody else up.", _SOURCE, bodies),
    Case("bomb-history", "Nor do malformed calls in the history.", _SOURCE, history),
    Case("bomb-arguments", "Nor do calls of endless digits or brackets, which are an error or arrive whole.", _SOURCE,
         arguments),
    Case("bomb-schemas", "Nor do schemas that double, nest, repeat or are just large.", _SOURCE, schemas),
    Case("bomb-keywords", "Nor do ids, references and keywords that make much work of a small schema.", _SOURCE,
         keywords),
)  # fmt: skip
