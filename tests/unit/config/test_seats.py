"""Requests that a replica takes beside the sequences that its engine runs."""

from pathlib import Path
from typing import Any

import pytest

from serve.config.gateway import GatewayConfig
from serve.config.seats import engine_seats, seat_findings

DEPLOY = Path(__file__).parents[3] / "deploy"


def findings(taken: int, kind: str = "vllm", **args: Any) -> list[tuple[str, str]]:
    pool = {"kind": kind, "max_ongoing_requests": taken, **({"engine_args": args} if args else {})}
    model = {"family": "kimi-k2", "grammar": "kimi_k2", "pools": {"p": pool}}
    config = GatewayConfig.parse({"models": {"m": model}})
    return [(level, message) for _, _, level, message in seat_findings(config)]


def test_more_requests_than_seats_is_a_warning_that_says_how_many_wait_inside() -> None:
    ((level, message),) = findings(64, **{"max-num-seqs": 25})
    assert level == "warning"
    assert "up to 39 wait" in message
    assert "set max_ongoing_requests to 25" in message


def test_fewer_requests_than_seats_is_worth_a_note() -> None:
    ((level, message),) = findings(20, max_num_seqs=25)
    assert level == "info"
    assert "5 of its engine's 25 seats" in message


def test_as_many_requests_as_seats_is_right_over_all_data_parallel_ranks() -> None:
    assert findings(50, **{"max-num-seqs": 25, "data-parallel-size": 2}) == []


def test_a_simulated_engine_states_its_seats_in_its_own_settings() -> None:
    pool = {"kind": "sim", "sim": {"max_num_seqs": 16}}
    config = GatewayConfig.parse(
        {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": pool, "q": {"kind": "sim"}}}}}
    )
    assert [engine_seats(model, pool) for _, model, pool, _ in config.each_pool()] == [16, None]


@pytest.mark.parametrize("args", [{}, {"max-num-seqs": "many"}])
def test_nothing_is_said_of_an_engine_whose_seats_are_unknown(args: dict[str, Any]) -> None:
    assert findings(64, **args) == []


def test_a_simulated_pool_has_no_seats_to_compare() -> None:
    assert findings(64, kind="sim") == []


@pytest.mark.parametrize("path", [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("overlays/*.yaml")], ids=lambda path: path.name)
def test_what_ships_takes_what_its_engines_run(path: Path) -> None:
    assert list(seat_findings(GatewayConfig.load(path))) == []
