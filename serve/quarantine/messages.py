"""Messages between gateway replicas and the shared detector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from policies import Cell
from serve.quarantine.detector import Action, DetectorTerms, OutcomeCount, TrialCount

DetectorState = Mapping[str, Any]  # `Detector.as_dict`


class Counts(NamedTuple):
    """Outcomes and trials that one replica counted, and the detector's terms as it knows them."""

    counts: tuple[OutcomeCount, ...]
    trials: tuple[TrialCount, ...]
    terms: DetectorTerms


class Order(NamedTuple):
    """An operator's order about one cell, its reason, and the id of the operator's key."""

    cell: Cell
    action: Action
    why: str
    operator: str = ""
