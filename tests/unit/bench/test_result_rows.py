"""Result files that are updated row by row."""

import json
from pathlib import Path

from bench.result_rows import upsert


def test_a_new_measurement_replaces_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for row in ({"at": 4, "took": 1.0}, {"at": 1, "took": 2.0}, {"at": 4, "took": 3.0}):
        upsert(path, row, ("at",))
    assert json.loads(path.read_text()) == [{"at": 1, "took": 2.0}, {"at": 4, "took": 3.0}]
