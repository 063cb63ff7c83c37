"""How pools are judged and taken out, as the configuration says it."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Share = Annotated[float, Field(ge=0, le=0.5)]
Chance = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class QuarantineConfig:
    """Quarantine of all models; see docs/quarantine.md.

    Attributes:
        enabled: Whether outcomes are counted and pools judged. Operators' own orders need it too.
        alpha: Chance, for each window of answers, that a pool no worse than the reference pool is quarantined.
        margin: By how much a pool's rate of bad answers must certainly exceed the reference's.
        window: Answers of one cell after which counting begins anew.
        return_alpha: Chance that a pool returns although it is worse than the reference by `tolerance`.
        tolerance: How much worse than the reference a pool may be to return.
        probe_share: Share of its requests that a quarantined cell still gets, protected by reruns.
        reference_share: Share of the checked requests that the reference pool gets so that it is measured too.
        state_dir: Folder for the state, so that it outlives the Ray cluster; one that every node sees.
    """

    enabled: bool = True
    alpha: Chance = 0.001
    margin: Share = 0.0
    window: Annotated[int, Field(ge=100)] = 2000
    return_alpha: Chance = 0.05
    tolerance: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    probe_share: Share = 0.02
    reference_share: Share = 0.02
    state_dir: str | None = None
