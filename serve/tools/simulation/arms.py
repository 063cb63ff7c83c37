"""The arms: in which order a request's allowed candidates are tried. None ever adds a candidate."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

from policies import Candidate, Decision
from serve.config.gateway import GatewayConfig
from serve.load.live_load import LiveLoad, Sent
from serve.tools.simulation.request import TOOLS, Drafter, SimRequest
from serve.tools.simulation.site import Site

_BYTES_PER_TOKEN = 4


class Arm(Protocol):
    """A way to route."""

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        """Returns the candidates of a request in the order in which they are tried."""
        ...

    def placed(self, request: SimRequest) -> None:
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

    def placed(self, request: SimRequest) -> None:
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
        load: The load of one gateway replica.
    """

    def __init__(self, site: Site, load: LiveLoad) -> None:
        self.load = load
        self._model = site.model
        self._sent: dict[SimRequest, tuple[Sent, Candidate]] = {}

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        features = request.features_for(self._model)
        size_bytes = request.prompt_tokens * _BYTES_PER_TOKEN
        ordered = self.load.ordered(decision, features, size_bytes)
        first = ordered.candidates[0]
        self._sent[request] = (self.load.begin(ordered, features, first, size_bytes), first)
        return ordered.candidates

    def placed(self, request: SimRequest) -> None:
        sent, first = self._sent[request]
        if request.candidate is not None and request.candidate is not first:
            sent.move(request.candidate)

    def ended(self, request: SimRequest, now_s: float) -> None:
        sent, _ = self._sent.pop(request)
        if request.length > 1.0:
            sent.response = _Report(request)
        sent.end()


class _Report:
    """The end of an engine's response, with its report on drafts."""

    def __init__(self, request: SimRequest) -> None:
        steps = max(1, round(request.output_tokens / request.length))
        accepted = max(0, request.output_tokens - steps)
        drafted = max(accepted, steps * 8)
        self.last: Iterable[bytes] = (
            b'{"metrics":{"speculative_decoding":{"num_spec_steps":%d,"num_accepted_draft_tokens":%d,'
            b'"num_draft_tokens":%d}}}' % (steps, accepted, drafted),
        )


def routing(config: GatewayConfig) -> GatewayConfig:
    """Returns the configuration with the load ranking in force."""
    return config.model_copy(update={"policy": config.policy.model_copy(update={"load": "route"})})


def specgate(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """One gateway replica with `policy.load: route`."""
    return Specgate(site, LiveLoad(routing(site.config), site.policy))


class TwoGateways:
    """Two gateway replicas with the load ranking; each sees the requests of its own conversations only."""

    def __init__(self, site: Site) -> None:
        self._gateways = [Specgate(site, LiveLoad(routing(site.config), site.policy, 2)) for _ in range(2)]

    def _of(self, request: SimRequest) -> Specgate:
        return self._gateways[sum(request.session.encode()) % 2]

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        return self._of(request).order(request, decision, now_s)

    def placed(self, request: SimRequest) -> None:
        self._of(request).placed(request)

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
