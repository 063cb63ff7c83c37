"""A probe's record: JSON lines that a later run picks up where an earlier one stopped, and what they add up to."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from policies import wilson
from serve.errors import ConfigError

# The model may miss a schema on any pool: shown, but no fault of the pool.
_CLEAN = frozenset({"clean", "schema_mismatch"})
# Neither says anything about the answers of a pool.
_NOT_COUNTED = frozenset({"error", "cut"})


class Record:
    """The trials of one run.

    Args:
        path: Where they are kept; None keeps nothing.
        settings: What the run is; a file with other settings is not continued.

    Raises:
        ConfigError: The file belongs to another run.
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
        """Cell and number of the trials that need not be run again; failed ones are."""
        return {(each["cell"], each["trial"]) for each in self.trials if each["outcome"] != "error"}

    def add(self, trial: dict[str, Any]) -> None:
        """Keep one trial; on disk at once, so that nothing is lost when the run is stopped."""
        self.trials.append(trial)
        self._write(trial)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _read(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a run that was killed may leave half a line
        try:
            lines = [json.loads(line) for line in whole.splitlines() if line]
        except ValueError as error:
            raise ConfigError(f"{path} is no record of a probe: {error}") from error
        if not lines or lines[0].get("settings") != settings:
            raise ConfigError(f"{path} belongs to a probe with other settings; name another file with --out")
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self.trials = lines[1:]


def summarise(trials: Iterable[Mapping[str, Any]], tolerate: float) -> dict[str, Any]:
    """Clean rates with their 95 % Wilson intervals, a cell each and in all."""
    latest = {(each["cell"], each["trial"]): each for each in trials}  # a failed trial may have been run again
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for (cell, _), trial in latest.items():
        cells.setdefault(cell, []).append(trial)
    rows = {cell: _row(each, tolerate) for cell, each in cells.items()}
    return {"total": _row(list(latest.values()), tolerate), "cells": rows}


def _row(trials: list[Mapping[str, Any]], tolerate: float) -> dict[str, Any]:
    outcomes = Counter(str(each["outcome"]) for each in trials)
    counted = sum(count for outcome, count in outcomes.items() if outcome not in _NOT_COUNTED)
    clean = sum(count for outcome, count in outcomes.items() if outcome in _CLEAN)
    low, high = wilson(clean, counted)
    return {
        "clean": clean,
        "n": counted,
        "interval": [round(low, 4), round(high, 4)],
        "calls": sum(int(each.get("calls", 0)) for each in trials),
        "outcomes": dict(outcomes.most_common()),
        # Unclean only if more is broken than tolerated, beyond chance.
        "unclean": wilson(counted - clean, counted)[0] > tolerate if counted else False,
        "pools": sorted({str(each["pool"]) for each in trials if each.get("pool")}),
    }


def evidence(summary: Mapping[str, Any], source: str, finding: str) -> dict[str, Any]:
    """What an advisory's `evidence` list can hold."""
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
