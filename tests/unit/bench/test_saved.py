"""Result files that are kept up to date row by row."""

import json
from pathlib import Path

from bench.saved import keep


def test_what_is_measured_again_takes_the_place_of_what_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for row in ({"at": 4, "took": 1.0}, {"at": 1, "took": 2.0}, {"at": 4, "took": 3.0}):
        keep(path, row, ("at",))
    assert json.loads(path.read_text()) == [{"at": 1, "took": 2.0}, {"at": 4, "took": 3.0}]
