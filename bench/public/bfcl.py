"""BFCL's gold calls: which functions a request offers, what it says, and which calls are right.

The package `bfcl-eval` brings the data; no code of it runs. Install it where you like (`pip download --no-deps
bfcl-eval`, unpacked, will do) and name the folder that holds `BFCL_v4_*.json`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.public.written_calls import FORMS, Call

_CONVERSATIONS = ("multi_turn",)
_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api",
    "TicketAPI": "ticket_api", "TradingBot": "trading_bot", "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api", "VehicleControlAPI": "vehicle_control",
}  # fmt: skip
_WITHOUT_CALLS = ("memory", "web_search", "format_sensitivity")


class GoldCase(NamedTuple):
    """One request of a suite with its right calls.

    Attributes:
        name: Of the case, unique in its suite.
        messages: Of the request.
        functions: That it offers, as BFCL writes them; none where they stand elsewhere.
        calls: The right ones, as name and arguments.
        others: What else the model knows, such as the state of the files.
    """

    name: str
    messages: Sequence[Mapping[str, Any]]
    functions: Sequence[Mapping[str, Any]]
    calls: Sequence[Call]
    others: Any = None


def folder() -> Path | None:
    """Returns the folder of the data if `bfcl-eval` is installed, without importing it."""
    found = importlib.util.find_spec("bfcl_eval")
    return None if found is None or found.origin is None else Path(found.origin).parent / "data"


def cases(data: Path) -> Iterator[GoldCase]:
    """Yields the cases that have gold calls.

    Args:
        data: The folder of `BFCL_v4_*.json`, with `possible_answer` in it.
    """
    for path in sorted(data.glob("BFCL_v4_*.json")):
        answers = data / "possible_answer" / path.name
        if answers.exists() and not any(kind in path.name for kind in _WITHOUT_CALLS):
            yield from _cases(path, answers)


def turns(data: Path) -> Iterator[GoldCase]:
    """Yields each turn of the conversations, after the right calls of those before it and results that say nothing.

    Args:
        data: As of `cases`, with `multi_turn_func_doc` in it.
    """
    for path in sorted(data.glob("BFCL_v4_multi_turn*.json")):
        gold = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / path.name)}
        for row in _rows(path):
            yield from _turns(row, gold.get(row["id"]) or (), _functions(data, row.get("involved_classes") or ()))


def written(data: Path) -> Iterator[tuple[GoldCase, str]]:
    """Yields the cases whose calls are asked for as text, each with its calls in one of the eight forms of such texts.

    Args:
        data: As of `cases`, with the list of these cases in it.
    """
    path = data / "BFCL_v4_format_sensitivity.json"
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    names = {name for some in chosen.values() for name in some}
    for number, case in enumerate(case for case in cases(data) if case.name in names):
        form = tuple(FORMS)[number // 2 % len(FORMS)]
        text = FORMS[form](case.calls)
        tag = "" if number % 2 else "TOOLCALL"
        name = f"{case.name} as {form}{', tagged' if tag else ''}"
        yield case._replace(name=name), f"<{tag}>{text}</{tag}>" if tag else text


def _turns(
    row: Mapping[str, Any], truth: Sequence[Sequence[str]], functions: Sequence[Mapping[str, Any]]
) -> Iterator[GoldCase]:
    places = {each["name"]: list((each.get("parameters") or {}).get("properties") or ()) for each in functions}
    messages: list[Mapping[str, Any]] = []
    for number, (question, spoken) in enumerate(zip(row["question"], truth, strict=False), 1):
        messages += question
        calls = [_named(*call, places) for call in map(_spoken, spoken) if call is not None and call[0] in places]
        if calls:
            yield GoldCase(f"{row['id']} turn {number}", [*messages], functions, calls)
            messages += _history(calls, number)


def _functions(data: Path, classes: Sequence[str]) -> list[dict[str, Any]]:
    files = (data / "multi_turn_func_doc" / f"{_DOCUMENTS[name]}.json" for name in classes if name in _DOCUMENTS)
    return [function for file in files if file.exists() for function in _rows(file)]


def _named(name: str, arguments: Mapping[str, Any], places: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, Any]]:
    """Returns a call whose arguments have the names that stand at their places."""
    known = places[name]
    return name, {
        known[int(key)] if key.isdigit() and int(key) < len(known) else key: value for key, value in arguments.items()
    }


def _history(calls: Sequence[Call], turn: int) -> list[dict[str, Any]]:
    """Returns the right calls of a turn, and a result for each."""
    made = [
        {"id": f"call_{turn}_{number}", "type": "function",
         "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for number, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in made]
    return [{"role": "assistant", "content": None, "tool_calls": made}, *results]


def _cases(path: Path, answers: Path) -> Iterator[GoldCase]:
    gold = {row["id"]: row["ground_truth"] for row in _rows(answers)}
    talks = any(kind in path.name for kind in _CONVERSATIONS)
    for row in _rows(path):
        truth = gold.get(row["id"])
        if truth is not None:
            calls = [call for turn in truth for call in map(_spoken, turn)] if talks else list(map(_listed, truth))
            messages = [message for turn in row["question"] for message in turn]
            functions = row.get("function", [])
            yield GoldCase(row["id"], messages, functions, [*filter(None, calls)], row.get("initial_config"))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, filter(str.strip, lines))


def _listed(call: Mapping[str, Mapping[str, Sequence[Any]]]) -> tuple[str, dict[str, Any]]:
    """Returns a call of which every argument has a list of values that are right; an empty text means none."""
    ((name, arguments),) = call.items()
    return name, {key: _first(values) for key, values in arguments.items() if values and values[0] != ""}


def _first(values: Sequence[Any]) -> Any:
    """Returns the first value; those of an object's members are lists again."""
    value = values[0]
    if isinstance(value, dict):
        return {key: _first(inner) if isinstance(inner, list) and inner else inner for key, inner in value.items()}
    return value


def _spoken(call: str) -> tuple[str, dict[str, Any]] | None:
    """Returns a call that is written as Python; None if it is not one with plain values."""
    try:
        tree = ast.parse(call, mode="eval").body
        if not isinstance(tree, ast.Call):
            return None
        plain = {str(place): ast.literal_eval(value) for place, value in enumerate(tree.args)}
        named = {word.arg or "": ast.literal_eval(word.value) for word in tree.keywords}
    except (SyntaxError, ValueError):
        return None
    return ast.unparse(tree.func), plain | named
