"""Small or dense requests that cost a naive gateway seconds: another client's `/health` is answered meanwhile."""

import json

from lab.attacks.bombs import ARGUMENTS, BOMBS, HISTORIES, KEYWORDS, MEMBERS
from lab.conform.bystander import slowest_meanwhile
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.scripted.scripts import answering, call_completion, whole


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
    return await _all(lab, {name: (_tool(schema), call) for name, (schema, call) in BOMBS.items()})


async def keywords(lab: Lab) -> CaseResult:
    return await _all(lab, {name: (_tool(schema), call) for name, (schema, call) in KEYWORDS.items()})


async def arguments(lab: Lab) -> CaseResult:
    return await _all(lab, {name: (_tool('{"type":"object"}'), text) for name, text in ARGUMENTS.items()})


async def bodies(lab: Lab) -> CaseResult:
    """Bodies that are long to read: nothing in them is wrong."""
    return await _all(lab, {name: (members, None) for name, members in MEMBERS.items()})


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

    return await _all(lab, {name: said(calls) for name, calls in HISTORIES.items()})


_DEPTHS = (100, 300, 1_000, 20_000)
# By API: a body with a place for what is nested, and the two halves of a level.
_NESTED = {
    "/v1/messages": (
        '{"model": %s, "max_tokens": 5, "messages": [{"role": "user", "content": [%s]}]}',
        ('{"type": "document", "source": {"type": "content", "content": [', "]}}"),
        ('{"type": "tool_result", "tool_use_id": "a", "content": [', "]}"),
    ),
    "/v1/responses": (
        '{"model": %s, "input": "x", "tools": [%s]}',
        ('{"type": "namespace", "name": "n", "tools": [', "]}"),
        ('{"type": "function", "name": "f", "parameters": {"properties": {"a": ', "}}}"),
    ),
    "/v1/chat/completions": (
        '{"model": %s, "messages": [{"role": "user", "content": [%s]}]}',
        ('{"type": "text", "text": [', "]}"),
        ("[", "]"),
    ),
}


async def nested(lab: Lab) -> CaseResult:
    """Documents, tools and parts within each other, in every API; a gateway may lack some."""
    wrong, sent = [], 0
    for path, (body, *levels) in _NESTED.items():
        for begin, end in levels:
            for depth in _DEPTHS:
                text = body % (json.dumps(lab.model), begin * depth + end * depth)
                reply = await lab.send(text.encode(), path=path)
                sent += 1
                if reply.status == 0 or reply.status == 500:
                    wrong.append(f"{path}, {depth} times {begin[:24]}: {reply.summary()}")
    return passed_if(not wrong, "; ".join(wrong) if wrong else f"none of {sent} is an internal error")


_SOURCE = "Algorithmic complexity, CWE-407"

CASES = (
    Case("bomb-bodies", "Bodies that are dense, deep or full of escapes hold nobody else up.", _SOURCE, bodies),
    Case("bomb-history", "Nor do malformed calls in the history.", _SOURCE, history),
    Case("bomb-arguments", "Nor do calls of endless digits or brackets, which are an error or arrive whole.", _SOURCE,
         arguments),
    Case("bomb-schemas", "Nor do schemas that double, nest, repeat or are just large.", _SOURCE, schemas),
    Case("bomb-keywords", "Nor do ids, references and keywords that make much work of a small schema.", _SOURCE,
         keywords),
    Case("bomb-nested", "Documents, tools and parts within each other are no internal error.", "CWE-674", nested),
)  # fmt: skip
