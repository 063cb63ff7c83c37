"""Decisions as span attributes."""

from typing import Any

from policies import Decision


def decision_attributes(decision: Decision) -> dict[str, Any]:
    """A decision as span attributes."""
    return {
        "specgate.model": decision.model,
        "specgate.pool": decision.pool or "",
        "specgate.speculative": decision.speculative,
        "specgate.classes": list(decision.classes),
        "specgate.reasons": [reason.advisory for reason in decision.reasons],
        "specgate.refused": decision.refused,
    }
