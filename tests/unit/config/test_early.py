"""What an engine would report after minutes is found without starting one."""

from pathlib import Path
from typing import Any

import pytest

from policies.vllm_options import KNOWN
from serve.config.early import missing_folders, unknown_options
from serve.config.gateway import GatewayConfig

ROOT = Path(__file__).parents[3]


def configured(args: dict[str, Any], kind: str = "vllm") -> GatewayConfig:
    pool = {"kind": kind, "engine_args": args}
    return GatewayConfig.parse({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}})


def test_every_option_that_vllm_has_passes() -> None:
    args = {name.replace("_", "-"): None for name in KNOWN - {"speculative_config"}}
    assert list(unknown_options(configured(args))) == []


@pytest.mark.parametrize(
    ("option", "meant"),
    [("max-model-length", "max-model-len"), ("tensor_paralel_size", "tensor-parallel-size"), ("no-such-thing", None)],
)
def test_an_option_that_no_vllm_has_is_named_with_the_one_that_was_meant(option: str, meant: str | None) -> None:
    ((model, pool, text),) = unknown_options(configured({option: 1}))
    assert (model, pool) == ("m", "p")
    assert option.removeprefix("no-").replace("_", "-") in text
    assert ("did you mean" in text) == (meant is not None)
    assert meant is None or repr(meant) in text


@pytest.mark.parametrize("path", ["/no/such/folder", "./no/such", "models/tiny-nobody", "no/such/deep/folder"])
def test_a_folder_that_is_not_here_is_told_with_its_path(path: str) -> None:
    drafter = {"method": "eagle3", "model": path, "num_speculative_tokens": 2}
    found = list(missing_folders(configured({"model": path, "speculative-config": drafter})))
    assert [text for _, _, text in found] == [
        f"the folder of its {what}, {path}, is not on this machine" for what in ("model", "drafter")
    ]


@pytest.mark.parametrize("path", ["models/tiny-kimi", str(ROOT / "models/tiny-qwen"), "Qwen/Qwen3.6-27B", "gpt2"])
def test_a_folder_that_is_here_and_a_name_on_a_hub_pass(path: str) -> None:
    assert list(missing_folders(configured({"model": path}))) == []


def test_configurations_that_ship_have_no_unknown_option() -> None:
    for file in sorted((ROOT / "deploy").glob("**/*.yaml")):
        if file.parent.name in ("deploy", "overlays"):
            assert list(unknown_options(GatewayConfig.load(file))) == [], file
