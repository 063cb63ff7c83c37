"""Finds the grammar of a model whose configuration does not name one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.config.pool import AUTO, NO_GRAMMAR, ModelConfig, engine_of
from serve.parsing.families import Found, find_grammar, thinking_of

_NEVER_RAW_IN_VLLM = {
    "kimi_k3": "its prompt tells the model the tool_choice, which has to be none",
    "harmony": "vLLM always parses it itself",
}


def evidence_of(name: str, model: ModelConfig) -> Found:
    """Returns the grammar that a model's configuration points to, whatever its `grammar` says."""
    version = f"-{model.version}" if model.version and not model.family.endswith(model.version) else ""
    names = [name, f"{model.family}{version}"]
    parsers: list[str] = []
    architectures: list[str] = []
    for pool_name, pool in model.pools.items():
        args = model.engine_args_of(pool_name) if pool.kind == "vllm" else {}
        weights = [str(args[key]) for key in ("model", "model-tag", "served-model-name") if args.get(key)]
        names += [*weights, *([pool.served_name] if pool.served_name else [])]
        parser = args.get("tool-call-parser") or pool.facts.get("tool_parser")
        parsers += [str(parser)] if parser else []
        architectures += [each for folder in weights for each in _architectures(Path(folder))]
    return find_grammar(names, parsers, architectures)


def resolved(name: str, model: ModelConfig) -> str:
    """Returns the grammar that reads a model's text: one of `GRAMMARS`, or `none`."""
    if model.grammar != AUTO:
        return model.grammar
    return evidence_of(name, model).grammar or NO_GRAMMAR


def grammar_findings(models: Mapping[str, ModelConfig]) -> Iterator[tuple[str, str]]:
    """Yields (model, message) for each model whose text no grammar reads, or perhaps the wrong one."""
    for name, model in models.items():
        found = evidence_of(name, model)
        if model.grammar == NO_GRAMMAR:
            message = (
                f"no grammar reads its text ({found.why}): its calls are checked as JSON, and a call that leaks into "
                "the text is rescued only if its markup shows the format; set `grammar` if you know it"
            )
            yield name, message
        elif found.grammar not in (None, model.grammar):
            yield name, f"its grammar is {model.grammar}, but {found.why} it would be {found.grammar}"


def raw_text_problems(model: ModelConfig) -> Iterator[str]:
    """Yields what keeps the gateway from reading the raw text of pools with `parse: gateway`."""
    for name, pool in model.pools.items():
        if pool.parse != "gateway":
            continue
        if model.grammar == NO_GRAMMAR:
            yield f"pool {name}: parse: gateway needs to know the model's grammar; say `grammar`"
        if engine_of(pool) == "vllm" and model.grammar in _NEVER_RAW_IN_VLLM:
            reason = _NEVER_RAW_IN_VLLM[model.grammar]
            yield f"pool {name}: vLLM can't hand on raw text of {model.grammar} ({reason}); use parse: engine"
        args = model.engine_args_of(name) if pool.kind == "vllm" else {}
        for parser in ("tool-call-parser", "reasoning-parser"):
            if args.get(parser):
                yield f"pool {name}: parse: gateway and {parser} exclude each other; leave one of them out"


def thinking_default(model: ModelConfig, pool: str | None = None) -> bool | None:
    """Returns whether a model thinks if a request does not say; None if that is its chat template's choice. Without a
    pool, the answer is for all of them: True if one thinks, as that is the case with more hazards.
    """
    if model.thinking is not None:
        return model.thinking
    thinking = thinking_of(model.grammar)
    said = [thinking.said(_template_defaults(model, name)) for name in ([pool] if pool else model.pools)]
    return True if True in said else False if False in said else None


def _template_defaults(model: ModelConfig, pool: str) -> Mapping[str, Any]:
    """Returns what a pool's engine gives to the chat template where a request does not."""
    if model.pools[pool].kind != "vllm":
        return {}
    given: Any = model.engine_args_of(pool).get("default-chat-template-kwargs")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}  # which vLLM refuses
    return given if isinstance(given, dict) else {}


def _architectures(folder: Path) -> list[str]:
    """Returns what the `config.json` of a model's folder says; nothing for a name that is no folder here."""
    try:
        config: Any = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return []
    names = config.get("architectures") if isinstance(config, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
