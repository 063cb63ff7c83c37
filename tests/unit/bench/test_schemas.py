"""MaskBench through the guard's own check, where its file is."""

import pytest

from bench.schemas import MASKBENCH, Tally, rows, verdict


@pytest.mark.skipif(not MASKBENCH.is_file(), reason=f"{MASKBENCH} is not here (SPECGATE_SHARED names its folder)")
def test_a_sample_of_maskbench_is_judged_as_jsonschema_judges_it() -> None:
    tally = Tally()
    for row in rows(MASKBENCH, every=9):
        tally.add(row)
    assert tally.wrong == []
    assert tally.values["unjudged"] <= 0.005 * sum(tally.values.values())
    assert tally.values["invalid"] > 100, "or the sample would prove nothing"


def test_a_verdict_is_one_of_three() -> None:
    assert verdict({"type": "string"}, "a")[0] == "valid"
    assert verdict({"type": "string"}, 1)[0] == "invalid"
    assert verdict({"$ref": "#"}, 1)[0] == "unjudged"
