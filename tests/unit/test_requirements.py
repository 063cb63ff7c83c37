"""The pinned requirements: what each environment may and may not install."""

from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def _lines(name: str) -> list[str]:
    return (REQUIREMENTS / name).read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ["gateway.txt", "cpu.txt", "dev.txt"])
def test_an_environment_without_a_gpu_installs_no_cuda_package(name: str) -> None:
    assert [line for line in _lines(name) if line.startswith(("nvidia-", "cuda-"))] == []


def test_the_gateway_alone_needs_neither_torch_nor_vllm() -> None:
    assert [line for line in _lines("gateway.txt") if line.startswith(("torch", "vllm"))] == []


@pytest.mark.parametrize("name", ["gateway.txt", "cpu.txt", "dev.txt", "gpu.txt"])
def test_pins_carry_no_address(name: str) -> None:
    assert [line for line in _lines(name) if "://" in line or line.startswith("-")] == []
