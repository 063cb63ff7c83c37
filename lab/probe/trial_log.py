"""The log of a probe's trials, as JSON lines that an interrupted run resumes from, and its summary."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lab.probe.interval import wilson
from serve.errors import ConfigError

CLEAN = "clean"
MISSED = "schema_mismatch"  # whole and well-formed, but not what the schema wants: any model may do that on any pool
REFUSED = "integrity_violation"  # a gateway's guard found the answer broken, and let the client have an error
# These say nothing about the quality of a pool's answers.
_NOT_COUNTED = frozenset({"error", "cut"})
# There is no text to blame anybody for.
BLAMELESS = frozenset({CLEAN, MISSED, REFUSED}) | _NOT_COUNTED


class TrialLog:
    """The trials of one probe.

    Args:
        path: File to keep them in, and to resume from if it exists; None keeps nothing.
        settings: Settings of the probe; a file with other settings is not resumed.

    Raises:
        ConfigError: The file is not a trial log, or was written with other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.trials: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._read(path, settings)
        elif path is not None:
            self._write({"settings": settings})

    @property
    def done(self) -> set[tuple[str, int]]:
        """Cell and number of the trials that have a result; failed ones are run again."""
        return {(trial["cell"], trial["trial"]) for trial in self.trials if trial["outcome"] != "error"}

    def add(self, trial: dict[str, Any]) -> None:
        """Add a trial and write it to disk at once, so that nothing is lost when the run is interrupted."""
        self.trials.append(trial)
        self._write(trial)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = path.read_bytes()
        complete = text[: text.rfind(b"\n") + 1]  # a run that was killed may leave half a line
        try:
            lines = [json.loads(line) for line in complete.split(b"\n") if line]
        except ValueError as error:
            raise ConfigError(f"{path} is not the trial log of a probe: {error}") from error
        if not lines or not isinstance(lines[0], dict) or lines[0].get("settings") != settings:
            raise ConfigError(f"{path} belongs to a probe with other settings; choose another file with --out")
        if complete != text:
            path.write_bytes(complete)
        self.trials = lines[1:]


def summarise(trials: Iterable[Mapping[str, Any]], tolerate: float) -> dict[str, Any]:
    """Returns clean rates with their 95 % Wilson intervals, per cell and in total."""
    latest = {(trial["cell"], trial["trial"]): trial for trial in trials}  # a failed trial may have been run again
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for (cell, _), trial in latest.items():
        cells.setdefault(cell, []).append(trial)
    rows = {cell: _row(cell_trials, tolerate) for cell, cell_trials in cells.items()}
    return {"total": _row(list(latest.values()), tolerate), "cells": rows}


def _row(trials: list[Mapping[str, Any]], tolerate: float) -> dict[str, Any]:
    outcomes = Counter(str(trial["outcome"]) for trial in trials)
    counted = sum(count for outcome, count in outcomes.items() if outcome not in _NOT_COUNTED)
    clean = sum(count for outcome, count in outcomes.items() if outcome == CLEAN)
    low, high = wilson(clean, counted)
    return {
        "clean": clean,
        "n": counted,
        "interval": [round(low, 4), round(high, 4)],
        "calls": sum(int(trial.get("calls", 0)) for trial in trials),
        "outcomes": dict(outcomes.most_common()),
        # Unclean only if significantly more answers are broken than tolerated.
        "unclean": wilson(counted - clean, counted)[0] > tolerate if counted else False,
        "causes": dict(Counter(trial["cause"] for trial in trials if "cause" in trial).most_common()),
        "pools": sorted({str(trial["pool"]) for trial in trials if trial.get("pool")}),
    }


def evidence(summary: Mapping[str, Any], source: str, finding: str) -> dict[str, Any]:
    """Returns an entry for the `evidence` list of an advisory.

    Args:
        summary: Result of `summarise`.
        source: Where the figures come from.
        finding: What was measured, in a sentence.
    """
    total = summary["total"]
    low, high = total["interval"]
    return {
        "kind": "measured",
        "source": source,
        "finding": finding,
        "clean": total["clean"],
        "n": total["n"],
        "interval": [round(low, 3), round(high, 3)],
    }
