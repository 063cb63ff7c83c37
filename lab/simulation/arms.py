"""The arms: in which order a request's allowed candidates are tried. None ever adds a candidate."""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

from lab.simulation.request import TOOLS, Drafter, SimRequest
from lab.simulation.site import Site
from policies import Candidate, Decision, choose
from serve.config.gateway import GatewayConfig
from serve.load.live_load import LiveLoad, Sent

_BYTES_PER_TOKEN = 4
_PERIOD_S = 1.0  # how often gateway replicas apply and share what they have learned


class Arm(Protocol):
    """A way to route."""

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        """Returns the candidates of a request in the order in which they are tried."""
        ...

    def placed(self, request: SimRequest, now_s: float) -> None:
        """Tells where the request went."""
        ...

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Tells that it is complete."""
        ...


class Fixed:
    """An arm that learns nothing.

    Args:
        rule: Orders the candidates.
    """

    def __init__(self, rule: Callable[[SimRequest, Sequence[Candidate]], Sequence[Candidate]]) -> None:
        self._rule = rule

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        return self._rule(request, decision.candidates)

    def placed(self, request: SimRequest, now_s: float) -> None:
        """Learns nothing."""

    def ended(self, request: SimRequest, now_s: float) -> None:
        """Learns nothing."""


def speculative_first(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """The order of `decide`."""
    return Fixed(lambda request, candidates: candidates)


def standard_only(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """No speculation, wherever it can be avoided."""

    def rule(request: SimRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if not candidate.speculative] or candidates

    return Fixed(rule)


def two_choices(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """The less loaded of two candidates, as a load balancer without classes does it."""

    def load(candidate: Candidate) -> float:
        return site.requests(candidate.pool) / len(site.engines[candidate.pool])

    def rule(request: SimRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        best = min((rng.choice(candidates), rng.choice(candidates)), key=load)
        return [best, *(candidate for candidate in candidates if candidate is not best)]

    return Fixed(rule)


def class_rule(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Tools where they draft best, everything else on the standard pool first."""

    def rule(request: SimRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return candidates if request.kind == TOOLS else sorted(candidates, key=lambda one: one.speculative)

    return Fixed(rule)


class Specgate:
    """The gateway's own code: its ranking, and what it has learned from the answers so far.

    Args:
        site: The engines.
        gateways: Gateway replicas; this is one of them.
    """

    def __init__(self, site: Site, gateways: int = 1) -> None:
        self._now_s = 0.0
        self.load = LiveLoad(routing(site.config), site.policy, gateways, lambda: self._now_s)
        self._model = site.model
        self._sent: dict[SimRequest, Sent] = {}
        self._checked_s = 0.0

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        self._at(now_s)
        features = request.features_for(self._model)
        size_bytes = request.prompt_tokens * _BYTES_PER_TOKEN
        ordered = choose(decision, order=self.load.order(decision, features, size_bytes))
        self._sent[request] = self.load.begin(ordered, features, ordered.candidates[0], size_bytes)
        return ordered.candidates

    def placed(self, request: SimRequest, now_s: float) -> None:
        assert request.candidate is not None
        self._at(now_s)
        self._sent[request].posted(request.candidate)

    def ended(self, request: SimRequest, now_s: float) -> None:
        self._at(now_s)
        sent = self._sent.pop(request)
        sent.last_frames().whole(_answer(request))
        sent.end()

    def _at(self, now_s: float) -> None:
        """Puts the clock forward, and once a second lets the replica apply what it has learned."""
        self._now_s = now_s
        if now_s - self._checked_s >= _PERIOD_S:
            self._checked_s = now_s
            self.load.check()


def _answer(request: SimRequest) -> bytes:
    """Returns the end of an engine's response: usage, and a report on drafts if there were any."""
    tokens = request.output_tokens
    steps = max(1, math.ceil(tokens / request.length))
    usage = b'{"usage":{"completion_tokens":%d}' % tokens
    if request.length > 1.0:
        usage += (
            b',"metrics":{"speculative_decoding":{"num_spec_steps":%d,"num_accepted_draft_tokens":%d,'
            b'"num_draft_tokens":%d}}' % (steps, tokens - steps, 8 * tokens)
        )
    return usage + b"}"


def routing(config: GatewayConfig) -> GatewayConfig:
    """Returns the configuration with the load ranking in force."""
    return config.model_copy(update={"policy": config.policy.model_copy(update={"load": "route"})})


def specgate(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """One gateway replica with `policy.load: route`."""
    return Specgate(site)


class TwoGateways:
    """Two gateway replicas; each sees the requests of its own conversations, and once a second the other's figures."""

    def __init__(self, site: Site) -> None:
        self._gateways = [Specgate(site, 2) for _ in range(2)]
        self._shared_s = 0.0

    def _of(self, request: SimRequest) -> Specgate:
        return self._gateways[sum(request.session.encode()) % 2]

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        if now_s - self._shared_s >= _PERIOD_S:
            self._shared_s = now_s
            one, two = (gateway.load for gateway in self._gateways)
            reports = one.report(), two.report()
            one.merge(reports[1])
            two.merge(reports[0])
        return self._of(request).order(request, decision, now_s)

    def placed(self, request: SimRequest, now_s: float) -> None:
        self._of(request).placed(request, now_s)

    def ended(self, request: SimRequest, now_s: float) -> None:
        self._of(request).ended(request, now_s)


def two_gateways(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Two gateway replicas with `policy.load: route`."""
    return TwoGateways(site)


MakeArm = Callable[[Site, Drafter, Random], Arm]
ARMS: Mapping[str, MakeArm] = {
    "speculative_first": speculative_first,
    "standard_only": standard_only,
    "two_choices": two_choices,
    "class_rule": class_rule,
    "specgate": specgate,
}
