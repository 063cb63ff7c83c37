"""Claims are held against the worst case, and say where that was."""

from typing import Any

from bench.goodput.claims import claims


def row(arm: str, ratio: float, load: str = "2 % by chance", **other: Any) -> dict[str, Any]:
    times = {"p50": 10.0, "p99": 20.0}
    return {
        "cluster": "c", "load": load, "arm": arm, "ratio_to_oracle": ratio, "tokens_per_s": ratio * 1000,
        "ttft_ms": times, "tpot_ms": times, "forbidden": 0, **other,
    }  # fmt: skip


def rows(ours: float, load: str = "2 % by chance", **other: Any) -> list[dict[str, Any]]:
    return [
        row("specgate", ours, load, **other), row("speculative_first", 0.9, load), row("standard_only", 0.8, load),
        row("two_gateways", ours, load), row("oracle", 1.0, load),
    ]  # fmt: skip


def test_what_holds_everywhere_is_met() -> None:
    found = claims(rows(0.97) + rows(0.99, "drift", after_change=0.98))
    assert [claim.met for claim in found] == [True] * 6
    assert [claim.where for claim in found[:3]] == ["c, 2 % by chance", "c, 2 % by chance", "c, drift"]


def test_the_worst_case_decides() -> None:
    found = claims(rows(0.97) + rows(0.80, "drift", after_change=0.9))
    assert [(claim.worst, claim.met) for claim in found[:4]] == [
        (0.80, False), (round(0.80 / 0.9, 4), False), (0.9, False), (0.80, False),
    ]  # fmt: skip


def test_slower_first_tokens_at_low_load_and_a_forbidden_request_are_seen() -> None:
    found = claims(rows(0.97, ttft_ms={"p50": 10.0, "p99": 21.0}, forbidden=1))
    assert [(claim.worst, claim.met) for claim in found if "latency" in claim.text] == [(1.05, False)]
    assert [(claim.worst, claim.met) for claim in found if "forbids" in claim.text] == [(1.0, False)]


def test_a_run_without_a_change_claims_nothing_of_one() -> None:
    assert not [claim for claim in claims(rows(1.0)) if "change" in claim.text]
