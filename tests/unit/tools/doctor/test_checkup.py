"""What doctor finds in a pool's settings before an engine is started."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.tools.doctor.checkup import examine
from serve.tools.doctor.decider import Decider

STALE = {"pipeline-parallel-size": 2, "async-scheduling": False}


def errors(tmp_path: Path, engine_args: dict[str, Any], *, drafter: bool = True, version: str = "0.33.0") -> list[str]:
    """Returns doctor's errors about a model with one vLLM pool."""
    speculative = {"speculative-config": {"method": "eagle3", "model": "d", "num_speculative_tokens": 2}}
    pool = {"kind": "vllm", "facts": {"engine_version": version}}
    engine_args = {"model": "m", **engine_args, **(speculative if drafter else {})}
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "models": {
                    "m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": {**pool, "engine_args": engine_args}}}
                }
            }
        )
    )
    return [each["message"] for each in examine(Decider.load(config))["findings"] if each["level"] == "error"]


def test_drafts_in_pipeline_stages_with_synchronous_scheduling_are_an_error(tmp_path: Path) -> None:
    assert any("vllm#52071" in text and "remove no-async-scheduling" in text for text in errors(tmp_path, STALE))


@pytest.mark.parametrize(
    ("engine_args", "drafter"),
    [
        (STALE, False),
        ({**STALE, "async-scheduling": True}, True),
        ({**STALE, "pipeline-parallel-size": 1}, True),
        ({**STALE, "enable-dbo": True}, True),  # which the V2 runner does not have
    ],
)
def test_the_same_without_one_of_the_three_is_not(tmp_path: Path, engine_args: dict[str, Any], drafter: bool) -> None:
    assert not any("vllm#52071" in text for text in errors(tmp_path, engine_args, drafter=drafter))
