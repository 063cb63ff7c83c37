"""Builds vLLM's deltas from the texts and calls of one step."""

from __future__ import annotations

from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage


def delta_message(**fields: Any) -> DeltaMessage | None:
    """Returns a delta with the non-empty fields, or None if all are empty: vLLM then sends no chunk."""
    present = {name: value for name, value in fields.items() if value}
    return DeltaMessage(**present) if present else None
