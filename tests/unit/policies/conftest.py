import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import policies
from policies import Advisory, PoolFacts, facts_from_engine_args, load_advisories

SHIPPED = Path(policies.__file__).parent / "advisories"


@pytest.fixture(scope="session")
def shipped() -> tuple[Advisory, ...]:
    return load_advisories(SHIPPED)


@pytest.fixture(scope="session")
def shipped_folder() -> Path:
    return SHIPPED


def make_advisory(**changes: Any) -> Advisory:
    values: dict[str, Any] = {
        "id": "a",
        "title": "t",
        "summary": "s",
        "status": "confirmed",
        "severity": "high",
        "affects": ({"engine": "vllm"},),
        "unsafe": ("tools",),
        "effects": {"speculative": "forbid", "opt_out": "allow", "standard": "allow"},
    }
    return Advisory(**(values | changes))


@pytest.fixture(scope="session")
def advisory() -> Callable[..., Advisory]:
    return make_advisory


def make_pools(opt_out: bool = False, standard: bool = True, **facts: Any) -> tuple[PoolFacts, ...]:
    common = {"kind": "vllm", "engine": "vllm", "engine_version": "0.32.0", "family": "kimi-k2", "hybrid": False}
    spec = PoolFacts(model="m", pool="speculative", method="eagle3", opt_out=opt_out, **common)
    spec = dataclasses.replace(spec, **facts)
    return (spec, PoolFacts(model="m", pool="standard", **common)) if standard else (spec,)


@pytest.fixture(scope="session")
def pools() -> Callable[..., tuple[PoolFacts, ...]]:
    return make_pools


@pytest.fixture(scope="session")
def vllm_pools() -> Callable[..., tuple[PoolFacts, ...]]:
    """A speculative and a standard pool from engine arguments, as a configuration gives them."""

    def make(model: str, family: str, version: str | None, args: dict[str, Any], spec: dict[str, Any], **known: Any):
        both = {"kind": "vllm", **known}
        with_spec = {**args, "speculative-config": spec}
        standard = {name: value for name, value in both.items() if name not in ("opt_out", "proven")}
        return (
            facts_from_engine_args(model, "speculative", family, version, with_spec, both),
            facts_from_engine_args(model, "standard", family, version, args, standard),
        )

    return make
