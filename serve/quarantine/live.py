"""One gateway replica's side of quarantine: decides without the quarantined cells, and counts the outcomes."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from random import random
from typing import Any

from policies import (
    Candidate,
    Cell,
    Decision,
    LivePolicy,
    Policy,
    Reason,
    RequestFeatures,
    Trial,
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
from serve.quarantine.detector import PROBE_SHARE, Terms, sample_share
from serve.quarantine.messages import Order
from serve.quarantine.shared_detector import SharedDetector
from serve.shared.link import Link

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
        link: Reaches the detector that all replicas share.
        chance: Returns numbers from 0 to 1, each as likely; nobody who writes requests may know the next one.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: QuarantineConfig,
        guards: Mapping[str, GuardConfig],
        policy: Policy,
        link: Link,
        chance: Callable[[], float] = random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(policy)
        self._config = config
        self._guards = guards
        self._base = policy
        self._shared = SharedDetector(link, lambda cell: is_suspected(self._base, cell), clock)
        self._chance = chance
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decides by another policy from now on, without the cells in quarantine."""
        references = {model: pool for model in policy.models if (pool := reference_pool(policy, model))}
        self._shared.detector.terms = Terms(self._config, references)
        self._base = policy
        self.policy = quarantine(policy, self._shared.detector.quarantined())

    def draw(self, decision: Decision, features: RequestFeatures) -> tuple[Decision, Trial | None]:
        """Makes a request a trial: chance says whether the pool under test answers it first, or the reference.

        No trial is what could go to one of the two only, such as a request whose caller asks for speculation: it would
        count for one pool and never for the other.

        Args:
            decision: From `decide`, its candidates in their final order.
            features: Of the request.
        """
        guard = self._guards[decision.model]
        if decision.refused or features.preference or guard.mode == "off" or not features.mask & _GUARDED:
            return decision, None
        pool = self._shared.detector.terms.references.get(decision.model)
        candidates = (each for each in decision.candidates if each.pool == pool and not each.speculative)
        reference = next(candidates, None)
        if reference is None:
            return decision, None
        return self._probe(decision, features, reference) or self._sample(decision, features, reference)

    def __call__(self, result: AttemptResult) -> None:
        """Counts the outcome of a first attempt; reruns are no measure of a pool, as only failures run again."""
        if result.verdict.counts and result.attempt == 0:
            cell = Cell(result.model, result.pool, result.speculative, result.request_class)
            self._shared.count(cell, str(result.verdict.outcome))

    def found(self, trial: Trial, finding: str) -> None:
        """Counts what came of a trial."""
        side = "own" if trial.first == trial.subject else "reference"
        self._shared.count_trial(trial.cell, f"{side}_{finding}", trial.share)

    async def run(self) -> None:
        """Calls `sync` every second, forever."""
        while True:
            await self.sync()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Reports what was counted since the last call, and decides by the shared state from now on."""
        await self._shared.sync()
        self._apply()

    async def order(self, order: Order) -> None:
        """Carries out an operator's order on all replicas.

        Raises:
            SharedStateError: The shared detector can't be reached.
        """
        await self._shared.order(order)
        self._apply()

    def cells(self) -> list[dict[str, Any]]:
        """Returns every cell of the current pools that has a record, for operators."""
        pools = {(facts.model, facts.pool) for facts in self._base.facts}
        return [cell for cell in self._shared.detector.view() if (cell["model"], cell["pool"]) in pools]

    def changes(self) -> list[dict[str, Any]]:
        """Returns the last changes of cells of the current pools, newest first, for operators."""
        pools = {(facts.model, facts.pool) for facts in self._base.facts}
        found = [change for change in self._shared.detector.changes() if change.cell[:2] in pools]
        return [{**change.cell._asdict(), **change.as_dict()} for change in found]

    def detector_age_s(self) -> float:
        """Returns the seconds since the shared detector last answered this replica."""
        return self._shared.age_s

    def _apply(self) -> None:
        """Puts the detector's state into effect."""
        detector = self._shared.detector
        before = self.policy.quarantined
        now = detector.quarantined()
        if now == before:
            return
        for cell in now.keys() - before.keys():
            log.warning("quarantine: %s is out: %s", cell, now[cell].why)
        for cell in before.keys() - now.keys():
            log.warning("quarantine: %s is back: %s", cell, detector.why(cell))
        self.policy = quarantine(self._base, now)

    def _probe(
        self, decision: Decision, features: RequestFeatures, reference: Candidate
    ) -> tuple[Decision, Trial] | None:
        """Returns a trial of a pool that the test quarantined, if one is due and a rerun would hide its faults."""
        if not self.policy.quarantined or not self._guards[decision.model].heals:
            return None
        chance = self._chance()
        for candidate in decide(self._base, features, features.preference).candidates:
            cell = _cell(decision.model, candidate, features)
            reason = self.policy.quarantined.get(cell)
            if reason is None or reason.basis == "operator" or candidate in decision.candidates:
                continue
            for first in (candidate, reference):
                if chance < self._config.probe_share:
                    why = (
                        f"A probe: {candidate.pool} is in quarantine for such requests; a rerun would hide its faults."
                    )
                    told = Reason("quarantine-probe", "inform", why, reason.basis) if first == candidate else None
                    trial = Trial(cell, candidate, reference, PROBE_SHARE, first, paired=False)
                    return _led(decision, first, told or _sampled(reference)), trial
                chance -= self._config.probe_share
        return None

    def _sample(
        self, decision: Decision, features: RequestFeatures, reference: Candidate
    ) -> tuple[Decision, Trial | None]:
        """Returns a trial of the pool that is to answer the request, at times with the reference in its place."""
        subject = decision.candidates[0]
        share = self._config.reference_share
        if not share or (subject.pool, subject.speculative) == (reference.pool, reference.speculative):
            return decision, None
        first = reference if self._chance() < share else subject
        cell = _cell(decision.model, subject, features)
        paired = self._guards[decision.model].heals
        trial = Trial(cell, subject, reference, sample_share(self._config), first, paired)
        return _led(decision, first, _sampled(reference)), trial


def _led(decision: Decision, first: Candidate, reason: Reason) -> Decision:
    return decision if first == decision.candidates[0] else led_by(decision, first, reason)


def _sampled(reference: Candidate) -> Reason:
    why = f"A sample: {reference.pool} without speculation is measured too, to compare the others with."
    return Reason("reference-sample", "inform", why, "operator")


def _cell(model: str, candidate: Candidate, features: RequestFeatures) -> Cell:
    return Cell(model, candidate.pool, candidate.speculative, features.request_class)
