"""The engine's behaviour for each advisory, beside what the advisory says of that version."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from lab.claims.other_vllm import run_claims, unpacked
from policies import Advisory, PoolFacts
from policies.advisory import unmet
from serve.errors import ConfigError

_ENGINE = ("engine", "engine_version")
KINDS = ("measured", "read", "reported")  # of evidence, best first
# What can be tried of an advisory with several alternatives.
_SCOPES: Mapping[str, Mapping[str, str]] = {"old-multi-token-tool-parsers": {"tool_parser": "minimax_m2"}}
# Suspicions that nobody has seen, or of which one cause alone can be tried: an engine need not show them.
_UNSEEN = frozenset(
    {
        "dflash-prefix-cache-on-hybrid",
        "mtp-prefix-cache-on-hybrid-checkpoint",
        "mtp-prefix-cache-on-hybrid-lookahead",
        "mtp-prefix-cache-on-hybrid-plain",
    }
)
# Causes that do harm together with others only: versions of which the advisory does not speak have them, too.
_CAUSES = frozenset({"grammar-with-speculation-residual"})


@dataclass(frozen=True)
class Tried:
    """The claims of all advisories on one vLLM.

    Attributes:
        version: Of vLLM.
        claims: By advisory the cases that show its fault and all cases, or why it could not be tried.
    """

    version: str
    claims: Mapping[str, tuple[int, int] | str]


def try_claims(version: str | None) -> Tried:
    """Tries every claim in a process of its own.

    Args:
        version: Of the vLLM to download and try; None takes the installed one.

    Raises:
        ConfigError: There is no such vLLM, or it can't be imported.
    """
    with ExitStack() as stack:
        folder = None if version is None else stack.enter_context(unpacked(version))
        found = run_claims("lab.claims", folder)
    if version not in (None, found["version"]):
        raise ConfigError(f"asked for vLLM {version}, imported {found['version']}")
    claims = {
        name: tally if isinstance(tally, str) else (tally[0], tally[1]) for name, tally in found["claims"].items()
    }
    return Tried(found["version"], claims)


def row_of(advisory: Advisory, tried: Tried | None) -> dict[str, Any]:
    """Returns how an advisory is known, when it was checked, and what the engine shows of it.

    Args:
        advisory: Any.
        tried: The claims on one engine; None if there is none.
    """
    kinds = {evidence.kind for evidence in advisory.evidence}
    tally = tried.claims.get(advisory.id) if tried else None
    shown, cases = tally if isinstance(tally, tuple) else (0, 0)
    return {
        "id": advisory.id,
        "known_by": next((kind for kind in KINDS if kind in kinds), "nothing"),
        "checked": str(advisory.checked.date) if advisory.checked else None,
        "engine": tried.version if tried and tally is not None else None,
        "affected": covers(advisory, tried.version) if tried and tally is not None else None,
        "shown": shown if cases else None,
        "cases": cases or None,
        "problem": tally if isinstance(tally, str) else None,
        "differs": bool(tried and cases and differs(advisory, tried.version, shown)),
    }


def covers(advisory: Advisory, version: str, engine: str = "vllm", scope: Mapping[str, str] | None = None) -> bool:
    """Returns whether an advisory speaks of this version of an engine.

    Args:
        advisory: Any.
        version: Of the engine.
        engine: `vllm` or `sglang`.
        scope: Only alternatives that name these facts count.
    """
    facts = PoolFacts("", "", engine=engine, engine_version=version)
    return any(
        all(conditions.get(name) == value for name, value in (scope or {}).items())
        and not unmet({name: conditions[name] for name in _ENGINE if name in conditions}, facts)
        for conditions in advisory.affects
    )


def differs(advisory: Advisory, version: str, shown: int, engine: str = "vllm") -> bool:
    """Returns whether an engine does something else than an advisory, be it a suspicion, says of its version.

    Args:
        advisory: One with a claim.
        version: Of the engine.
        shown: Cases that showed the fault.
        engine: `vllm` or `sglang`.
    """
    name = advisory.id
    if advisory.status == "withdrawn":
        return False
    if covers(advisory, version, engine, _SCOPES.get(name)):
        return not shown and name not in _UNSEEN
    return bool(shown) and name not in _CAUSES
