"""Results of the conformance benchmark of which some cases ran again."""

from bench.conform import merged


def _result(**verdicts: str) -> dict[str, object]:
    rows = [{"case": case, "verdict": verdict} for case, verdict in verdicts.items()]
    return {"version": "2", "green": True, "cases": rows, "counts": {"pass": len(rows), "fail": 0, "n/a": 0}}


def test_cases_that_did_not_run_again_keep_their_rows_and_are_counted() -> None:
    whole = merged(
        _result(first="fail", second="pass", gone="pass"), _result(second="n/a", new="pass"), ["new", "first", "second"]
    )
    assert whole["cases"] == [
        {"case": "new", "verdict": "pass"},
        {"case": "first", "verdict": "fail"},
        {"case": "second", "verdict": "n/a"},
    ]
    assert (whole["counts"], whole["green"]) == ({"pass": 1, "fail": 1, "n/a": 1}, False)


def test_a_gateway_that_did_not_start_has_no_rows() -> None:
    assert merged(_result(first="pass"), {"error": "no"}, ["first"]) == {"error": "no"}
    assert merged({}, _result(first="pass"), ["first"]) == _result(first="pass")
