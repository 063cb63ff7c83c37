"""Quarantine as decisions see it: the cells that are out, and the references to compare the others with."""

import dataclasses
from collections.abc import Iterable, Mapping

from policies.classes import BIT, CHECKED, class_of, masks_of
from policies.decision import Cell
from policies.errors import PolicyError
from policies.policy import MODES, Policy, QuarantineReason, ServingOption

_KINDS = tuple(name for name, bit in BIT.items() if bit & CHECKED and name != "plain")
_EXAMPLE = class_of(BIT["tools_auto"] | BIT["strict"] | BIT["thinking"])


def quarantine(policy: Policy, cells: Mapping[Cell, QuarantineReason]) -> Policy:
    """Returns the policy without these cells; those of an earlier call are back in."""
    successor = policy.successor and quarantine(policy.successor, cells)
    return dataclasses.replace(policy, quarantined=dict(cells), successor=successor, memory={})


def reference_pool(policy: Policy, model: str) -> str | None:
    """Returns the pool that, without speculation, the model's other pools are compared with.

    It is the first standard pool, else the first that can opt out; None if every pool of the model speculates, so that
    there is nothing to compare with.
    """
    options = policy.models[model].options
    best = max(options, key=lambda option: (MODES.index(option.mode), -option.place))
    return None if best.mode == "speculative" else best.pool


def is_suspected(policy: Policy, cell: Cell) -> bool:
    """Returns True if any advisory warns of this cell, be it waived, only suspected, or a warning."""
    mask = mask_of_class(cell.request_class)
    options: Iterable[ServingOption] = policy.models[cell.model].options if cell.model in policy.models else ()
    return any(
        required & mask == required
        for option in options
        if option.pool == cell.pool and (option.mode == "speculative") == cell.speculative
        for rule in option.rules
        for required in rule.masks
    )


def mask_of_class(request_class: str) -> int:
    """Returns the mask of a request class as cells name it.

    Raises:
        PolicyError: It names no class whose answers can be checked.
    """
    try:
        masks = masks_of(request_class)
    except PolicyError:
        masks = ()
    if len(masks) != 1 or not masks[0] & CHECKED or masks[0] & BIT["plain"] or class_of(masks[0]) != request_class:
        raise PolicyError(
            f"{request_class!r} is not a class whose answers are checked; such a class lists kinds that can be checked "
            f"({', '.join(_KINDS)}), then strict, then thinking, such as {_EXAMPLE!r}"
        )
    return masks[0]
