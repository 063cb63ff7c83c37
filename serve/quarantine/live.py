"""A gateway replica's side of quarantine: it decides by what is known at the moment, and counts what comes of it."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from policies import (
    Candidate,
    Cell,
    Decision,
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
from serve.live_policy import LivePolicy
from serve.quarantine.detector import Terms
from serve.quarantine.judge import Judge, Order
from serve.quarantine.ledger import Ledger
from serve.quarantine.sampling import Shares
from serve.quarantine.settings import settings_of

log = logging.getLogger("ray.serve.specgate.quarantine")


PERIOD_S = 1.0


_GUARDED = sum(BIT[kind] for group in ("tools", "json") for kind in GROUPS[group])


class QuarantineView(LivePolicy):
    """What one gateway replica knows of quarantine, what it adds to it, and the policy that follows.

    Attributes:
        policy: The compiled policy with the present quarantine.

    Args:
        config: Settings.
        guards: The guard of each model.
        policy: The compiled policy.
        judge: Shared by all replicas.
    """

    def __init__(
        self, config: QuarantineConfig, guards: Mapping[str, GuardConfig], policy: Policy, judge: Judge
    ) -> None:
        super().__init__(policy)
        self._config, self._guards, self._base = config, guards, policy
        self._ledger = Ledger(judge, lambda cell: is_suspected(self._base, cell))
        self._talking = asyncio.Lock()
        self._probes, self._samples = Shares(config.probe_share), Shares(config.reference_share)
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decide by another policy from now on, without what is in quarantine."""
        references = {model: pool for model in policy.models if (pool := reference_pool(policy, model))}
        self._ledger.known.terms = Terms(settings_of(self._config), references)
        self._base = policy
        self.policy = quarantine(policy, self._ledger.known.quarantined())

    def decide(self, features: RequestFeatures) -> Decision:
        """The decision for a request; now and then a probe of a quarantined pool, or a sample of the reference."""
        decision = super().decide(features)
        if decision.refused or not features.mask & _GUARDED:
            return decision
        return self._probe(decision, features) or self._sample(decision, features) or decision

    def __call__(self, result: AttemptResult) -> None:
        """Count one judged answer."""
        if result.verdict.counts:
            cell = Cell(result.model, result.pool, result.speculative, result.request_class)
            self._ledger.count(cell, str(result.verdict.outcome))

    async def run(self) -> None:
        """Report and look every second, for ever."""
        while True:
            await self.sync()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Report what was counted since the last call, and decide by what is known by now."""
        async with self._talking:
            await self._ledger.sync()
            self._act()

    async def order(self, order: Order) -> None:
        """Have an operator's order carried out on all replicas.

        Raises:
            SharedStateError: The shared judge can't be reached.
        """
        async with self._talking:
            await self._ledger.order(order)
            self._act()

    def cells(self) -> list[dict[str, Any]]:
        """Every cell of today's pools that was ever counted or ordered about, for operators."""
        pools = {(facts.model, facts.pool) for facts in self._base.facts}
        return [cell for cell in self._ledger.known.view() if (cell["model"], cell["pool"]) in pools]

    def _act(self) -> None:
        """Let what is known by now take effect."""
        known = self._ledger.known
        before, now = self.policy.quarantined, known.quarantined()
        if now == before:
            return
        for cell in now.keys() - before.keys():
            log.warning("quarantine: %s is out: %s", cell, now[cell].why)
        for cell in before.keys() - now.keys():
            log.warning("quarantine: %s is back: %s", cell, known.why(cell))
        self.policy = quarantine(self._base, now)

    def _probe(self, decision: Decision, features: RequestFeatures) -> Decision | None:
        """The decision for a pool that the test took out, if it is its turn; only where a rerun hides its faults."""
        if not self.policy.quarantined or not self._guards[decision.model].heals:
            return None
        for candidate in decide(self._base, features, features.wish).candidates:
            cell = _cell(decision.model, candidate, features)
            finding = self.policy.quarantined.get(cell)
            if finding is None or finding.basis == "operator" or candidate in decision.candidates:
                continue
            if self._probes.due(cell):
                why = f"A probe: {candidate.pool} is in quarantine for such requests; a rerun would hide its faults."
                return led_by(decision, candidate, Reason("quarantine-probe", "inform", why, finding.basis))
        return None

    def _sample(self, decision: Decision, features: RequestFeatures) -> Decision | None:
        """The decision for the reference pool, if it is its turn to be measured."""
        if features.wish or not decision.speculative or self._guards[decision.model].mode == "off":
            return None
        pool = self._ledger.known.terms.references.get(decision.model)
        reference = next((each for each in decision.candidates if each.pool == pool and not each.speculative), None)
        if reference is None or not self._samples.due(_cell(decision.model, reference, features)):
            return None
        why = f"A sample: {pool} without speculation is measured too, for the others to be compared with."
        return led_by(decision, reference, Reason("reference-sample", "inform", why, "operator"))


def _cell(model: str, candidate: Candidate, features: RequestFeatures) -> Cell:
    return Cell(model, candidate.pool, candidate.speculative, features.request_class)
