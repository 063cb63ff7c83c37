"""Findings: facts about an engine, each with its source and how sure it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from policies.facts import TOLD, without_build

Confidence = Literal["certain", "stated", "likely", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact.

    Attributes:
        value: None where it is not known.
        confidence: `certain`: the engine says it, or its answers leave no other explanation. `stated`: the operator
            says it. `likely`: it behaves like that; shown, but nothing is trusted for it.
    """

    value: Any
    source: str
    confidence: Confidence


Findings = Mapping[str, Finding]

SETTINGS = (
    "kv_cache_dtype", "max_model_len", "structured_outputs_backend", "pipeline_parallel_size", "page_size",
    "enable_dp_attention", "enable_hierarchical_cache", "mamba_radix_cache_strategy", "kv_connector",
)  # fmt: skip


def shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what all of some mappings have alike; nothing if there are none."""
    first, *others = values or ({},)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a mapping within a mapping; empty if there is none."""
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def known(findings: Findings, name: str) -> Any:
    """Returns a fact's value if it may be relied on, else None."""
    finding = findings.get(name)
    return finding.value if finding is not None and finding.confidence in ("certain", "stated") else None


def is_same(name: str, stated: Any, found: Any) -> bool:
    """Returns whether a fact is what is stated."""
    said, told = (str(each).strip().lower() for each in (stated, found))
    return told == said or (name == "engine_version" and without_build(told) == without_build(said))


def facts_of(findings: Findings) -> dict[str, Any]:
    """Returns the `facts` of a pool with this engine: nothing but what may be relied on.

    What is missing counts as unknown, and so does the method unless it is known that there is none or which.
    """
    facts = {name: value for name in TOLD if (value := known(findings, name)) is not None}
    settings = {name: value for name in SETTINGS if (value := known(findings, name)) is not None}
    settings = {**(known(findings, "settings") or {}), **settings}
    facts["method"] = known(findings, "method") or "unknown"
    return {**facts, "settings": settings} if settings else facts


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """One URL and what was found there.

    Attributes:
        url: Base URL, without `/v1`.
        key_env: Environment variable with its key; None if it needs none.
        resolve: Each address that the host of the URL has is an engine like this one.
    """

    url: str
    key_env: str | None
    findings: Findings
    resolve: bool = False
