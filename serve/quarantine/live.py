"""One gateway replica's side of quarantine: decides without the quarantined cells, and counts the outcomes."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from policies import (
    Candidate,
    Cell,
    Decision,
    LivePolicy,
    Policy,
    Reason,
    RequestFeatures,
    decide,
    is_suspected,
    led_by,
    quarantine,
    reference_pool,
)
from policies.classes import BIT, GROUPS
from serve.config.guard import GuardConfig
from serve.config.quarantine import QuarantineConfig
from serve.guard.attempt_result import AttemptResult
from serve.quarantine.detector import Terms
from serve.quarantine.ledger import Ledger
from serve.quarantine.messages import DetectorClient, Order
from serve.quarantine.sampling import EveryNth

log = logging.getLogger("ray.serve.specgate.quarantine")

PERIOD_S = 1.0
_GUARDED = sum(BIT[kind] for group in ("tools", "json") for kind in GROUPS[group])


class QuarantinedPolicy(LivePolicy):
    """A live policy without the cells that are in quarantine.

    Attributes:
        policy: The compiled policy with the current quarantine.

    Args:
        config: Settings.
        guards: The guard of each model.
        policy: The compiled policy.
        client: Reaches the detector that all replicas share.
    """

    def __init__(
        self, config: QuarantineConfig, guards: Mapping[str, GuardConfig], policy: Policy, client: DetectorClient
    ) -> None:
        super().__init__(policy)
        self._config = config
        self._guards = guards
        self._base = policy
        self._ledger = Ledger(client, lambda cell: is_suspected(self._base, cell))
        self._lock = asyncio.Lock()  # the ledger's calls are not reentrant
        self._probes = EveryNth(config.probe_share)
        self._samples = EveryNth(config.reference_share)
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decides by another policy from now on, without the cells in quarantine."""
        references = {model: pool for model in policy.models if (pool := reference_pool(policy, model))}
        self._ledger.detector.terms = Terms(self._config, references)
        self._base = policy
        self.policy = quarantine(policy, self._ledger.detector.quarantined())

    def decide(self, features: RequestFeatures) -> Decision:
        """Returns the decision for a request: at times a probe of a quarantined pool, or a sample of the reference."""
        decision = super().decide(features)
        if decision.refused or not features.mask & _GUARDED:
            return decision
        return self._probe(decision, features) or self._sample(decision, features) or decision

    def __call__(self, result: AttemptResult) -> None:
        """Counts the outcome of one attempt."""
        if result.verdict.counts:
            cell = Cell(result.model, result.pool, result.speculative, result.request_class)
            self._ledger.count(cell, str(result.verdict.outcome))

    async def run(self) -> None:
        """Calls `sync` every second, forever."""
        while True:
            await self.sync()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Reports what was counted since the last call, and decides by the shared state from now on."""
        async with self._lock:
            await self._ledger.sync()
            self._apply()

    async def order(self, order: Order) -> None:
        """Carries out an operator's order on all replicas.

        Raises:
            SharedStateError: The shared detector can't be reached.
        """
        async with self._lock:
            await self._ledger.order(order)
            self._apply()

    def cells(self) -> list[dict[str, Any]]:
        """Returns every cell of the current pools that has a record, for operators."""
        pools = {(facts.model, facts.pool) for facts in self._base.facts}
        return [cell for cell in self._ledger.detector.view() if (cell["model"], cell["pool"]) in pools]

    def changes(self) -> list[dict[str, Any]]:
        """Returns the last changes of cells of the current pools, newest first, for operators."""
        pools = {(facts.model, facts.pool) for facts in self._base.facts}
        found = [change for change in self._ledger.detector.changes() if change.cell[:2] in pools]
        return [{**change.cell._asdict(), **change.as_dict()} for change in found]

    def detector_age_s(self) -> float:
        """Returns the seconds since the shared detector last answered this replica."""
        return self._ledger.age_s

    def _apply(self) -> None:
        """Puts the detector's state into effect."""
        detector = self._ledger.detector
        before = self.policy.quarantined
        now = detector.quarantined()
        if now == before:
            return
        for cell in now.keys() - before.keys():
            log.warning("quarantine: %s is out: %s", cell, now[cell].why)
        for cell in before.keys() - now.keys():
            log.warning("quarantine: %s is back: %s", cell, detector.why(cell))
        self.policy = quarantine(self._base, now)

    def _probe(self, decision: Decision, features: RequestFeatures) -> Decision | None:
        """Returns a decision for a pool that the test quarantined, if it is due and a rerun would hide its faults."""
        if not self.policy.quarantined or not self._guards[decision.model].heals:
            return None
        for candidate in decide(self._base, features, features.preference).candidates:
            cell = _cell(decision.model, candidate, features)
            reason = self.policy.quarantined.get(cell)
            if reason is None or reason.basis == "operator" or candidate in decision.candidates:
                continue
            if self._probes.due(cell):
                why = f"A probe: {candidate.pool} is in quarantine for such requests; a rerun would hide its faults."
                return led_by(decision, candidate, Reason("quarantine-probe", "inform", why, reason.basis))
        return None

    def _sample(self, decision: Decision, features: RequestFeatures) -> Decision | None:
        """Returns a decision for the reference pool, if a sample of it is due."""
        if features.preference or not decision.speculative or self._guards[decision.model].mode == "off":
            return None
        pool = self._ledger.detector.terms.references.get(decision.model)
        candidates = (candidate for candidate in decision.candidates if candidate.pool == pool)
        reference = next((candidate for candidate in candidates if not candidate.speculative), None)
        if reference is None or not self._samples.due(_cell(decision.model, reference, features)):
            return None
        why = f"A sample: {pool} without speculation is measured too, to compare the others with."
        return led_by(decision, reference, Reason("reference-sample", "inform", why, "operator"))


def _cell(model: str, candidate: Candidate, features: RequestFeatures) -> Cell:
    return Cell(model, candidate.pool, candidate.speculative, features.request_class)
