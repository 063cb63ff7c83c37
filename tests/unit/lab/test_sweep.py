"""The advisories' bounds equal those that the wheels show; no engine is imported."""

import pytest
from packaging.version import Version

from lab.claims import sweep
from lab.claims.sglang_options import options
from lab.claims.verification import differs
from policies import load_advisories
from serve.config.compiled_policy import SHIPPED_ADVISORIES

ADVISORIES = {advisory.id: advisory for advisory in load_advisories(SHIPPED_ADVISORIES)}
SWEPT = sweep.load()


def test_no_advisory_says_something_else_of_a_version_than_the_version_shows():
    wrong = [
        (engine, version, name, shown)
        for name, engine, version, shown in sweep.tallies(SWEPT)
        if differs(ADVISORIES[name], version, shown, engine)
    ]
    assert wrong == []


def test_the_sweep_holds_versions_on_either_side_of_every_bound_that_an_advisory_with_a_claim_has():
    tried = {engine: sorted(map(Version, versions)) for engine, versions in SWEPT.items()}
    assert len(tried["vllm"]) >= 3
    assert len(tried["sglang"]) >= 5
    for versions in tried.values():
        assert versions[0] < Version("0.20") < Version("99")


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("kimi-counting-tool-parser", "0.19.1"),
        ("glm-multi-token-tool-parser", "0.19.1"),
        ("hermes-multi-token-tool-parser", "0.18.1"),
        ("qwen-multi-token-tool-parser", "0.23.0"),
    ],
)
def test_parsers_that_were_mended_are_seen_broken_up_to_a_version_and_never_after_it(name, last):
    found = [(Version(version), shown) for each, _, version, shown in sweep.tallies(SWEPT) if each == name]
    assert all((version <= Version(last)) is bool(shown) for version, shown in found if version >= Version("0.17.1"))


def test_bounds_are_runs_of_tried_versions_in_their_order():
    swept = {
        "vllm": {
            "0.10.0": {"a": [1, 2], "b": [0, 2]},
            "0.9.0": {"a": [2, 2], "b": "ImportError: gone"},
            "0.11.0": {"a": [0, 2], "b": [0, 0]},
            "0.12.0": {"a": [1, 2]},
        },
        "sglang": {"0.5.6": {"a": [3, 3]}},
    }
    assert sweep.bounds(swept) == {
        ("a", "sglang"): ["0.5.6"],
        ("a", "vllm"): ["0.9.0 to 0.10.0", "0.12.0"],
        ("b", "vllm"): [],
    }


def test_what_was_found_is_kept_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "DATA", tmp_path / "swept.yaml")
    sweep.store(SWEPT)
    assert sweep.load() == SWEPT


def test_the_bounds_that_are_known_are_printed_without_a_download(capsys):
    sweep.main(["--known"])
    printed = capsys.readouterr().out
    assert "kimi-counting-tool-parser" in printed


FIELDS = """
class Spec:
    algorithm: A[str, Arg(help="x", aliases=["--speculative-algo"], cli_name="--speculative-algorithm")] = None
    draft_tokens: A[int, "How many"] = 3
    derived: A[bool, Arg(no_cli=True)] = False
    cache: A[int, Derived(doc="x")] = 0
    plain: int = 0
"""
ADDED = "def add_cli_args(parser):\n    parser.add_argument('--config', '-c', type=str)\n"


def test_the_options_of_sglang_are_read_from_the_source_that_declares_them(tmp_path):
    fields = tmp_path / "arg_groups" / "fields"
    fields.mkdir(parents=True)
    (fields / "spec.py").write_text(FIELDS, encoding="utf-8")
    (tmp_path / "server_args.py").write_text(ADDED, encoding="utf-8")
    assert options(tmp_path) == {"speculative_algorithm", "speculative_algo", "draft_tokens", "config", "c"}
