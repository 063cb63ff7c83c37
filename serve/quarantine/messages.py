"""Messages between gateway replicas and the shared detector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from policies import Cell
from serve.quarantine.detector import Action, DetectorTerms, EchoCount, OutcomeCount, TrialCount

DetectorState = Mapping[str, Any]  # `Detector.as_dict`


class Counts(NamedTuple):
    """Outcomes, trials and copies that one replica counted, and the detector's terms as it knows them."""

    counts: tuple[OutcomeCount, ...]
    trials: tuple[TrialCount, ...]
    terms: DetectorTerms
    echoes: tuple[EchoCount, ...] = ()


class Order(NamedTuple):
    """An operator's order about one cell, its reason, and the id of the operator's key."""

    cell: Cell
    action: Action
    why: str
    operator: str = ""
