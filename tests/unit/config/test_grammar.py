"""The grammar of a model: named, found, or none, and what an operator learns of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve.config.gateway import GatewayConfig
from serve.config.grammar import grammar_findings, thinking_default
from serve.config.pool import ModelConfig, engine_of
from serve.errors import ConfigError


def model_of(family: str = "x", pool: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    model = {"family": family, "pools": {"standard": pool or {"kind": "vllm"}}, **fields}
    return GatewayConfig.parse({"models": {"m": model}}).models["m"]


def args(**engine_args: Any) -> dict[str, Any]:
    return {"kind": "vllm", "engine_args": {key.replace("_", "-"): value for key, value in engine_args.items()}}


def test_auto_is_the_default_and_becomes_the_grammar_that_is_found() -> None:
    assert model_of("kimi-k2").grammar == "kimi_k2"
    assert model_of(pool=args(model="/weights/Qwen3-Coder-30B")).grammar == "qwen3_coder"
    assert model_of(pool=args(tool_call_parser="hermes")).grammar == "hermes"
    remote = {"kind": "remote", "url": "http://e:1", "served_name": "Qwen/Qwen3-8B"}
    assert model_of(pool=remote).grammar == "hermes"
    assert model_of(pool={**remote, "served_name": "x", "facts": {"tool_parser": "kimi_k2"}}).grammar == "kimi_k2"


@pytest.mark.parametrize("name", ["vLLM", "SGLang"])
def test_an_engine_hands_on_raw_text_however_its_name_is_written(name: str) -> None:
    model = model_of("kimi-k2", {"kind": "remote", "url": "http://e:1", "parse": "gateway", "facts": {"engine": name}})
    assert engine_of(model.pools["standard"]) == name.lower()


def test_the_architecture_of_a_local_folder_is_evidence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen2ForCausalLM"]}))
    assert model_of(pool=args(model=str(tmp_path))).grammar == "hermes"
    (tmp_path / "config.json").write_text("[")
    assert model_of(pool=args(model=str(tmp_path))).grammar == "none"


def test_the_found_grammar_is_what_another_node_reads() -> None:
    config = GatewayConfig.parse({"models": {"m": {"family": "kimi-k2", "pools": {"s": {"kind": "vllm"}}}}})
    assert GatewayConfig.parse(config.model_dump(mode="json")).models["m"].grammar == "kimi_k2"


def test_a_grammar_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"models\.m\.grammar: there is no grammar 'kimi'; known: auto, none, .*hermes"
    ):
        model_of(grammar="kimi")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (model_of(), "neither its name"),
        (model_of("kimi-k2", args(tool_call_parser="hermes")), "contradict each other"),
        (model_of("kimi-k2", grammar="none"), "by the name"),
        (model_of("kimi-k2", grammar="hermes"), "its grammar is hermes, but by the name it would be kimi_k2"),
    ],
)
def test_an_operator_learns_why_no_grammar_reads_a_model_or_that_another_would(
    model: ModelConfig, message: str
) -> None:
    ((name, text),) = grammar_findings({"m": model})
    assert name == "m"
    assert message in text


def test_a_grammar_that_fits_is_not_worth_a_word() -> None:
    assert not list(grammar_findings({"m": model_of("kimi-k2"), "n": model_of(grammar="hermes")}))


def test_thinking_follows_the_model_then_the_pools_defaults_then_the_family() -> None:
    on = args(default_chat_template_kwargs={"thinking": True})
    assert thinking_default(model_of("kimi-k2")) is None
    assert thinking_default(model_of("kimi-k2", on)) is True
    assert thinking_default(model_of("kimi-k2", on, thinking=False)) is False
    assert thinking_default(model_of("kimi-k2", args(default_chat_template_kwargs='{"thinking": false}'))) is False
    assert thinking_default(model_of("kimi-k2", args(default_chat_template_kwargs="{"))) is None
    both = model_of("kimi-k2", pools={"a": args(), "b": on})
    assert thinking_default(both) is True
    assert thinking_default(both, "a") is None
