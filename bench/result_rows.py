"""Result files that are updated row by row: a new measurement replaces the earlier one of the same name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def upsert(path: Path, row: Mapping[str, Any], key: Sequence[str]) -> None:
    """Insert a row into a JSON file of rows, or replace the row with the same key.

    Args:
        path: The file; created if it does not exist.
        row: What was measured.
        key: Names of the fields that identify a row.
    """
    saved = json.loads(path.read_text()) if path.exists() else []
    rows = [*(other for other in saved if any(other[name] != row[name] for name in key)), row]
    rows.sort(key=lambda other: [other[name] for name in key])
    path.write_text(json.dumps(rows, indent=1) + "\n")
