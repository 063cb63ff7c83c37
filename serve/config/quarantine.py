"""Settings of quarantine, and of the echo canary that feeds it: written once, for the file and for the detector.

Stdlib dataclasses, so that the pure detector can use them. As fields of `GatewayConfig`, pydantic validates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Lt

Share = Annotated[float, Ge(0), Le(0.5)]
Chance = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class QuarantineConfig:
    """Quarantine of all models; see docs/explanation/quarantine.md.

    Attributes:
        enabled: Count outcomes and quarantine pools. Operators' own orders need it too.
        alpha: Chance, for each window of trials, that a pool no worse than the reference pool is quarantined.
        margin: By how much a pool's rate of bad answers must certainly exceed the reference's.
        window: Trials of one cell that the reference pool answers first, after which counting restarts.
        return_alpha: Chance that a pool returns although it is worse than the reference by `tolerance`.
        tolerance: How much worse than the reference a pool may be to return.
        probe_share: Share of its class's requests that a quarantined cell still gets, protected by reruns; as many go
            to the reference pool for comparison.
        reference_share: Share of each other pool's checked requests that the reference pool gets for comparison.
        state_dir: Folder for the state, so that it survives the Ray cluster; every node must see it.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    enabled: bool = True
    alpha: Chance = 0.001
    margin: Share = 0.0
    window: Annotated[int, Ge(100)] = 4000
    return_alpha: Chance = 0.05
    tolerance: Annotated[float, Gt(0), Le(0.5)] = 0.05
    probe_share: Share = 0.02
    reference_share: Share = 0.02
    state_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class EchoConfig:
    """The echo canary: the gateway has every pool copy identifiers, in requests of its own; see docs/adr/0113.

    Attributes:
        every_s: Seconds between two rounds of requests to a pool.
        share: Largest share of a pool's tokens that these requests may use; the first rounds on a new build may borrow
            from later ones.
        least: Requests, about 1,000 tokens each, that each round makes in any case.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    every_s: Annotated[float, Ge(1)] = 3600.0
    share: Annotated[float, Ge(0), Le(0.1)] = 0.001
    least: Annotated[int, Ge(0)] = 8
