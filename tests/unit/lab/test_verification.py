"""What an engine shows of an advisory, beside what the advisory says of its version."""

import subprocess
from dataclasses import replace

import pytest

from lab.claims import other_vllm
from lab.claims.verification import Tried, covers, differs, row_of
from policies import PoolFacts, load_advisories
from serve.config.compiled_policy import SHIPPED_ADVISORIES
from serve.errors import ConfigError

ADVISORIES = {advisory.id: advisory for advisory in load_advisories(SHIPPED_ADVISORIES)}
BOUNDED = ADVISORIES["kimi-counting-tool-parser"]  # vLLM < 0.20, confirmed
SUSPECTED = ADVISORIES["mtp-prefix-cache-on-hybrid-checkpoint"]


@pytest.mark.parametrize(("version", "shown", "wrong"), [
    ("0.19.1", 3, False), ("0.19.1", 0, True), ("0.32.0", 0, False), ("0.32.0", 1, True), ("0.19.2rc1", 3, False),
])  # fmt: skip
def test_a_confirmed_advisory_must_be_seen_within_its_bounds_and_only_there(version, shown, wrong):
    assert differs(BOUNDED, version, shown) is wrong


@pytest.mark.parametrize(
    "version", ["0.19.1", "0.20.0rc1", "0.20.0", "0.20.0+cpu", "0.20.0.post1", "0.33.0rc1", "0.33.0"]
)
def test_an_advisory_speaks_of_the_versions_whose_pools_it_matches(version):
    for advisory in ADVISORIES.values():
        alone = replace(advisory, affects=tuple(
            {name: value for name, value in each.items() if name in ("engine", "engine_version")}
            for each in advisory.affects
        ), status="confirmed")  # fmt: skip
        matches = alone.matches(PoolFacts("m", "p", engine="vllm", engine_version=version, method="mtp"))
        assert covers(advisory, version) is matches, advisory.id


def test_a_suspicion_is_compared_as_well_unless_it_is_of_what_nobody_has_seen():
    hermes = replace(ADVISORIES["hermes-multi-token-tool-parser"], status="suspected")
    assert [differs(hermes, "0.18.1", shown) for shown in (0, 5)] == [True, False]
    assert [differs(hermes, "0.32.0", shown) for shown in (0, 5)] == [False, True]
    assert covers(SUSPECTED, "0.32.0")
    assert not any(differs(SUSPECTED, "0.32.0", shown) for shown in (0, 5))


def test_a_claim_about_one_of_several_parsers_is_held_to_that_parsers_bound():
    parsers = ADVISORIES["old-multi-token-tool-parsers"]
    assert covers(parsers, "0.30.0")
    assert [differs(parsers, "0.30.0", shown) for shown in (0, 5)] == [False, True]
    assert [differs(parsers, "0.17.1", shown) for shown in (0, 5)] == [True, False]


def test_a_cause_that_other_versions_have_too_says_nothing_of_them():
    residual = ADVISORIES["grammar-with-speculation-residual"]
    assert not differs(residual, "0.20.0", 2)
    assert differs(residual, "0.32.0", 0)


def test_a_withdrawn_advisory_says_nothing():
    withdrawn = replace(BOUNDED, status="withdrawn")
    assert not any(differs(withdrawn, version, shown) for version in ("0.19.1", "0.32.0") for shown in (0, 3))


def test_what_could_not_be_tried_is_told_and_does_not_differ():
    tried = Tried("0.19.1", {BOUNDED.id: "ImportError: gone", SUSPECTED.id: (0, 0)})
    row = row_of(BOUNDED, tried)
    assert (row["problem"], row["cases"], row["differs"]) == ("ImportError: gone", None, False)
    assert row_of(SUSPECTED, tried)["cases"] is None
    assert row_of(BOUNDED, None)["engine"] is None


def test_a_version_that_does_not_exist_is_wrong_input(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: first\nERROR: No matching distribution\n")
    monkeypatch.setattr(other_vllm.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ConfigError, match="No matching distribution"), other_vllm.unpacked("9.9"):
        pass
