"""The faults of `make test-faults` that need neither Ray nor rights: nothing hangs, and every error is one of ours."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.needs import missing
from tests.faults.observing import observe
from tests.faults.table import FAULTS, Fault

QUICK = ("nonsense", "certificate")


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if any(word in each.name for word in QUICK)], ids=lambda each: each.name
)
async def test_clients_see_what_the_table_says(fault: Fault, tmp_path: Path) -> None:
    if lacking := missing(fault.needs):
        pytest.skip(f"needs {', '.join(lacking)}")
    row = await observe(replace(fault, hold_s=min(fault.hold_s, 2.0)), tmp_path)
    assert not row.wrong
    assert row.ends
