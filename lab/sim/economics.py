"""Costs of a simulated engine's work: step times, prefill and KV memory, as a table that can be measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from policies.step_times import PREFILL_TOKENS_PER_S, PUBLISHED, StepTimes
from serve.errors import ConfigError

_FIELDS = frozenset({"step_times", "prefill_tokens_per_s", "kv_tokens", "overcommit"})
_SURFACE = frozenset({"drafts", "batches", "step_ms"})


@dataclass(frozen=True, slots=True)
class Economics:
    """The costs of one engine.

    Attributes:
        step_times: Time of a step by batch size and draft length: `drafts` and `batches`, both ascending, and
            `step_ms`, a row for each draft length.
        prefill_tokens_per_s: Prompt tokens computed in a second, while other sequences wait.
        kv_tokens: Tokens that its KV memory holds. By default about what an 8B model has on an 80 GB GPU.
        overcommit: How many times the KV memory is promised to sequences; those that find no room are preempted. Only
            for engines that serve HTTP.
    """

    step_times: StepTimes = PUBLISHED
    prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S
    kv_tokens: int = 400_000
    overcommit: float = 1.0

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Economics:
        """Returns the costs that a mapping states; what it leaves out is as published.

        Args:
            values: `prefill_tokens_per_s`, `kv_tokens`, `overcommit`, and `step_times` with `drafts`, `batches` (both
                ascending) and `step_ms` (a row for each draft length).

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        if unknown := set(values) - _FIELDS:
            raise ConfigError(f"economics: unknown settings {sorted(unknown)}; known: {sorted(_FIELDS)}")
        given: dict[str, Any] = dict(values)
        if "step_times" in given:
            given["step_times"] = surface(given["step_times"])
        for name in ("prefill_tokens_per_s", "kv_tokens"):
            if name in given and not (isinstance(given[name], int | float) and given[name] > 0):
                raise ConfigError(f"economics: {name} must be a number above 0")
        if "overcommit" in given and not (isinstance(given["overcommit"], int | float) and given["overcommit"] >= 1):
            raise ConfigError("economics: overcommit must be a number of at least 1")
        return cls(**given)


def surface(values: Mapping[str, Any]) -> StepTimes:
    """Returns a table of step times.

    Args:
        values: `drafts`, `batches` and `step_ms`, as a file has them.

    Raises:
        ConfigError: It is no such table.
    """
    if not isinstance(values, Mapping) or set(values) != _SURFACE:
        raise ConfigError(f"step_times: needs exactly {sorted(_SURFACE)}")
    drafts, batches, rows = values["drafts"], values["batches"], values["step_ms"]
    if not (_ascending(drafts) and _ascending(batches) and drafts[0] == 0 and batches[0] >= 1):
        raise ConfigError(
            "step_times: drafts (from 0) and batches (from 1) must each be two or more ascending integers"
        )
    if not (
        isinstance(rows, list | tuple)
        and len(rows) == len(drafts)
        and all(isinstance(row, list | tuple) and len(row) == len(batches) for row in rows)
    ):
        raise ConfigError("step_times: step_ms needs a row for each draft length and a column for each batch")
    if not all(isinstance(ms, int | float) and ms > 0 for row in rows for ms in row):
        raise ConfigError("step_times: every time must be a number of milliseconds above 0")
    return StepTimes(tuple(drafts), tuple(batches), tuple(tuple(ms / 1e3 for ms in row) for row in rows))


def _ascending(values: object) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) >= 2
        and all(isinstance(value, int) for value in values)
        and all(low < high for low, high in pairwise(values))
    )
