"""Quarantine as decisions see it: what has been taken out, and what the others are measured against."""

import dataclasses
from collections.abc import Iterable, Mapping

from policies.classes import BIT, CHECKED, class_of, masks_of
from policies.errors import PolicyError
from policies.policy import Cell, Finding, Option, Policy

_PREFERENCE = ("speculative", "opt_out", "standard")


def quarantine(policy: Policy, cells: Mapping[Cell, Finding]) -> Policy:
    """The policy with these cells taken out; those of an earlier call are forgotten.

    Args:
        policy: A compiled policy.
        cells: What is out, and why.
    """
    successor = policy.successor and quarantine(policy.successor, cells)
    return dataclasses.replace(policy, quarantined=dict(cells), successor=successor, memory={})


def reference_pool(policy: Policy, model: str) -> str | None:
    """The pool that, without speculation, the model's others are measured against.

    It is the first standard pool, else the first that can opt out; None where the model is always served with
    speculation: there is nothing to compare with.
    """
    options = policy.models[model].options
    best = max(options, key=lambda option: (_PREFERENCE.index(option.way), -option.place))
    return None if best.way == "speculative" else best.pool


def is_suspected(policy: Policy, cell: Cell) -> bool:
    """Whether an advisory speaks against this cell, be it waived, only suspected, or a warning."""
    mask = mask_of_class(cell.request_class)
    options: Iterable[Option] = policy.models[cell.model].options if cell.model in policy.models else ()
    found = (each for each in options if each.pool == cell.pool and (each.way == "speculative") == cell.speculative)
    return any(each & mask == each for option in found for rule in option.rules for each in rule.masks)


def mask_of_class(request_class: str) -> int:
    """The mask of a request class as cells name it.

    Raises:
        PolicyError: It names no class of answers that can be judged.
    """
    masks = masks_of(request_class)
    if len(masks) != 1 or not masks[0] & CHECKED or masks[0] & BIT["plain"] or class_of(masks[0]) != request_class:
        raise PolicyError(
            f"{request_class!r} is no class of answers that are judged; such a class is kinds that can be checked "
            f"(tools_auto, json_schema, ...), then strict, then thinking, such as {_EXAMPLE!r}"
        )
    return masks[0]


_EXAMPLE = class_of(BIT["tools_auto"] | BIT["strict"] | BIT["thinking"])
