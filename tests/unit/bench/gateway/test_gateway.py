"""What the gateway benchmark sends, checks and sums up; the measuring itself needs the other gateways."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gateway import report, sides
from bench.gateway.in_process import bounds
from bench.gateway.runner import Measurement, Workload
from bench.gateway.traffic import MODEL, RERUN_MODEL, said_in, shapes, tool_frames

RUN = Measurement("direct", "stream@16", 100, 50.0, 10.0, 20.0, 1.0, 1.0, 0.0, 0.1, 0.1, 0.0)


@pytest.mark.parametrize("shape", shapes().values(), ids=lambda shape: shape.name)
def test_the_upstreams_answer_says_what_the_shape_promises(shape: object) -> None:
    assert said_in(shape.exact, shape.streamed) == shape.text  # type: ignore[attr-defined]


def test_a_broken_tool_call_is_no_json() -> None:
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(said_in(b"".join(tool_frames(broken=True)), streamed=True))


def test_the_long_request_is_an_agents() -> None:
    body = json.loads(shapes()["long"].body)
    assert len(body["tools"]) == 30
    assert len(shapes()["long"].body) > 4 * 120_000
    assert json.loads(shapes()["rerun"].body)["model"] == RERUN_MODEL != MODEL


@pytest.mark.parametrize("name", ["stream", "stream@", "stream@0", "stream@x", "cream@1", ""])
def test_a_wrong_cell_is_told_with_what_is_known(name: str) -> None:
    with pytest.raises(ValueError, match="shapes: short, stream"):
        Workload.parse(name)


def test_rows_are_medians_over_direct_and_ratios_to_specgate() -> None:
    ours = [replace(RUN, side=sides.SPECGATE, p50_ms=p50, cpu_ms=cpu) for p50, cpu in ((12, 0.4), (13, 0.5), (99, 0.6))]
    theirs = replace(RUN, side="other", cpu_ms=1.0, exact=0.5)
    direct, specgate, other = report.summarize([RUN, *ours, theirs])
    assert (specgate.added_p50_ms, specgate.cpu_ms, specgate.cpu_ratio, specgate.exact) == (3.0, 0.5, 1.0, True)
    assert (other.cpu_ratio, other.exact) == (2.0, False)
    table = report.markdown([direct, specgate, other], {"slow": "does not install"})
    assert "| specgate | 50 | 3.00 |" in table
    assert "- slow: does not install" in table


def test_another_checkout_runs_in_its_own_folder_with_its_own_environment(tmp_path: Path) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    assert sides.before(tmp_path).command[0] == "{bin}/python"
    python.parent.mkdir(parents=True)
    python.touch()
    side = sides.before(tmp_path)
    assert (side.name, side.folder, side.command[0]) == ("specgate before", tmp_path, str(python))
    assert side.command[1:] == sides.REPLICA.command[1:]


def test_one_strange_launch_moves_neither_the_median_nor_its_bounds() -> None:
    launches = [1.0 + number / 100 for number in range(12)]
    assert bounds(launches) == (1.02, pytest.approx(1.055), 1.09)
    assert bounds([*launches[:-1], 9.0]) == bounds(launches)
    assert bounds([1.1, 0.9]) == (0.9, pytest.approx(1.0), 1.1)
