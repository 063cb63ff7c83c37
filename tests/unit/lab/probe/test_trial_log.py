"""The log of a probe's trials, and its summary."""

import pytest

from lab.probe.trial_log import TrialLog, summarise
from serve.errors import ConfigError


def test_failed_and_cut_trials_count_for_nothing_and_failed_ones_run_again(tmp_path):
    log = TrialLog(tmp_path / "r.jsonl", {"a": 1})
    for number, outcome in enumerate(
        ["clean", "error", "cut", "invalid_json", "schema_mismatch", "integrity_violation"]
    ):
        log.add({"cell": "c", "trial": number, "outcome": outcome})
    total = summarise(log.trials, 0.0)["total"]
    assert (total["clean"], total["n"], total["unclean"]) == (1, 4, True)
    assert not summarise(log.trials, 0.9)["total"]["unclean"]
    resumed = TrialLog(tmp_path / "r.jsonl", {"a": 1})
    assert ("c", 1) not in resumed.done
    assert len(resumed.done) == 5
    resumed.add({"cell": "c", "trial": 1, "outcome": "clean"})
    assert summarise(resumed.trials, 0.0)["total"]["n"] == 5
    with pytest.raises(ConfigError, match="other settings"):
        TrialLog(tmp_path / "r.jsonl", {"a": 2})


@pytest.mark.parametrize("text", [b"\xff\xfe\n", b"{\n", b"[1]\n", b"half a line"])
def test_a_file_that_is_no_log_is_wrong_input_and_stays_as_it_is(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"r\.jsonl"):
        TrialLog(path, {"a": 1})
    assert path.read_bytes() == text
