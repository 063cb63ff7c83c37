"""The environment of an engine's processes."""

import pytest

from serve.engine.environment import environment


def test_an_engine_writes_bytecode_whatever_the_container_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert environment({})["PYTHONDONTWRITEBYTECODE"] == ""


def test_a_pools_own_variables_outweigh_inherited_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setenv("UNRELATED", "1")
    assert environment({"VLLM_CPU_KVCACHE_SPACE": "1"})["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "UNRELATED" not in environment({})
