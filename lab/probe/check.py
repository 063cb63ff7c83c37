"""The verdict on a probe's answer, by the guard's own code and by the verifier's rules."""

from collections.abc import Mapping
from typing import Any

from lab.probe.k2vv import calls_are_valid
from serve.config.guard import GuardConfig
from serve.guard.core import check_answer

_GUARD_SETTINGS = GuardConfig(mode="observe", schema="warn")


def check(request: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the guard's verdict on an answer, and the verifier's on its calls.

    An answer that hit its length limit is `cut` and proves nothing.
    """
    choice = _choice(answer)
    verifier = {}
    if choice.get("finish_reason") == "tool_calls":
        verifier["tool_calls_valid"] = calls_are_valid(request, choice.get("message") or {})
    return {**guarded(request, answer), **verifier}


def guarded(request: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the guard's verdict alone, which costs a tenth of both."""
    choice = _choice(answer)
    message, reason = choice.get("message") or {}, choice.get("finish_reason")
    facts: dict[str, Any] = {"calls": len(message.get("tool_calls") or ()), "finish_reason": reason}
    verdict = check_answer(_GUARD_SETTINGS, request, answer)
    if not verdict.counts:
        return {"outcome": "cut", **facts}
    details = [defect.detail for defect in verdict.defects]
    return {"outcome": str(verdict.outcome), **facts, **({"detail": "; ".join(details)} if details else {})}


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer["choices"][0] if answer.get("choices") else {}
