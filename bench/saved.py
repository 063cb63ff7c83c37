"""Result files that grow row by row: what was measured again takes the place of what was measured before."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def keep(path: Path, row: Mapping[str, Any], named: Sequence[str]) -> None:
    """Put a row into a JSON file of rows, for the one that is equal in the fields `named`."""
    known = json.loads(path.read_text()) if path.exists() else []
    rows = [*(each for each in known if any(each[name] != row[name] for name in named)), row]
    rows.sort(key=lambda each: [each[name] for name in named])
    path.write_text(json.dumps(rows, indent=1) + "\n")
