"""Request sets of Moonshot's K2-Vendor-Verifier, and its two metrics: trigger similarity and schema accuracy.

The verifier counts an answer by its finish reason and checks calls with `jsonschema` and nothing else. So does this
module, down to the corners, so that both give the same figures for the same answers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from serve.errors import ConfigError

_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class RequestSet:
    """Recorded requests, all sent streamed or all sent whole.

    Attributes:
        source: The file's name, without its folder.
        bodies: Request bodies by the number of their line, which is the verifier's `data_index`.
        stream: Whether they are streamed, whatever they say themselves.
    """

    source: str
    bodies: Mapping[int, dict[str, Any]]
    stream: bool

    @property
    def name(self) -> str:
        """The cell's name in tables and trial logs."""
        return f"{self.source} stream={'on' if self.stream else 'off'}"

    def numbers(self, trials: int) -> range:
        """Returns the numbers of the trials, if every request is sent `trials` times."""
        return range(trials * len(self.bodies))

    def body(self, number: int) -> dict[str, Any]:
        """Returns the request of a trial; a repeated one has a seed, because it must not be answered the same."""
        body = dict(self.bodies[self.data_index(number)])
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        else:
            body["stream"] = False
            body.pop("stream_options", None)
        repeat = number // len(self.bodies)
        return {**body, "seed": repeat} if repeat else body

    def data_index(self, number: int) -> int:
        """Returns which of the requests a trial sends."""
        return list(self.bodies)[number % len(self.bodies)]


def read_requests(path: Path) -> dict[int, dict[str, Any]]:
    """Returns the requests of a file by the number of their line.

    Messages of the role `_input`, which only Moonshot's own API knows, become system messages as in the verifier.

    Raises:
        ConfigError: A line is not a request body that can be sent, or there is none.
    """
    bodies = {}
    for number, value in _lines(path):
        if problem := _problem(value):
            raise ConfigError(f"{path}, line {number}: {problem}")
        messages = [{**each, "role": "system"} if each.get("role") == "_input" else each for each in value["messages"]]
        bodies[number] = {**value, "messages": messages}
    if not bodies:
        raise ConfigError(f"{path} holds no requests")
    return bodies


def _problem(body: Mapping[str, Any]) -> str | None:
    """Returns why a body can't be sent, or its answer not be checked; None if both can be."""
    if not _are_objects(body.get("messages")):
        return "not a request body with messages"
    tools = body.get("tools") or []
    if not _are_objects(tools) or not _are_objects([tool.get("function") for tool in tools]):
        return "tools must be a list of objects, each with a function"
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # Python reads NaN, and half of a character; JSON has neither
        return f"not JSON that can be sent: {error}"
    return None


def _are_objects(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def read_reference(path: Path) -> dict[int, str]:
    """Returns the finish reason of each request in a reference run, by `data_index`.

    Args:
        path: Results that the verifier wrote, or the trial log of a probe. The first answer to a request counts.

    Raises:
        ConfigError: The file holds no results.
    """
    reasons: dict[int, str] = {}
    for _, value in _lines(path):
        if isinstance(value.get("finish_reason"), str) and isinstance(value.get("data_index"), int):
            reasons.setdefault(value["data_index"], value["finish_reason"])
    if not reasons:
        raise ConfigError(f"{path} holds no results: no line has a data_index and a finish_reason")
    return reasons


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}, line {number}: not a JSON object")
        yield number, value


def calls_are_valid(request: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Returns the verifier's verdict on an answer that ends in tool calls.

    Every call must name a tool of the request and hold arguments that its schema allows; there must be a call.

    Args:
        request: The request body.
        message: The answer's message.
    """
    schemas: dict[str, Any] = {}
    for tool in request.get("tools") or ():
        function = tool.get("function") or {}
        schemas.setdefault(str(function.get("name")), function.get("parameters"))
    calls = message.get("tool_calls") or ()
    return bool(calls) and all(_is_valid(call.get("function") or {}, schemas) for call in calls)


def _is_valid(function: Mapping[str, Any], schemas: Mapping[str, Any]) -> bool:
    schema = schemas.get(str(function.get("name")))
    if not schema:  # an empty one counts as none
        return False
    try:
        jsonschema.validate(json.loads(function["arguments"]), schema)
    except Exception:  # noqa: BLE001 - as in the verifier, a schema that can't be applied is a call that is not valid
        return False
    return True


def metrics(
    trials: Iterable[Mapping[str, Any]], reference: Mapping[int, str] | None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the verifier's metrics by cell and pool; shares are None where nothing can be divided.

    Args:
        trials: Of a probe; failed ones have no finish reason and count for nothing.
        reference: Finish reasons of the reference run by `data_index`; None leaves out the trigger similarity.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for trial in trials:
        if trial.get("finish_reason"):
            groups.setdefault((trial["cell"], trial.get("pool") or "-"), []).append(trial)
    return {
        group: {**_schema_accuracy(own), **(_similarity(own, reference) if reference else {})}
        for group, own in sorted(groups.items())
    }


def _schema_accuracy(trials: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = [bool(trial["tool_calls_valid"]) for trial in trials if trial["finish_reason"] == _CALLS]
    return {
        "count_finish_reason_tool_calls": len(verdicts),
        "count_successful_tool_call": sum(verdicts),
        "schema_accuracy": _share(sum(verdicts), len(verdicts)),
    }


def _similarity(trials: Iterable[Mapping[str, Any]], reference: Mapping[int, str]) -> dict[str, Any]:
    pairs = [
        (trial["finish_reason"] == _CALLS, reference[trial["data_index"]] == _CALLS)
        for trial in trials
        if trial["data_index"] in reference
    ]
    both = pairs.count((True, True))
    alone, missed = pairs.count((True, False)), pairs.count((False, True))
    return {
        "compared": len(pairs),
        "tool_call_precision": _share(both, both + alone),
        "tool_call_recall": _share(both, both + missed),
        "tool_call_f1": _share(2 * both, 2 * both + alone + missed),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
