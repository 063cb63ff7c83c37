"""An oracle that minds prompts: the ranking's own rule, told the truth about all that the ranking has to learn."""

from collections.abc import Sequence
from random import Random

from lab.simulation.arms import Arm
from lab.simulation.request import Drafter, SimRequest
from lab.simulation.site import Site
from policies import Candidate, Decision
from policies.acceptance import Acceptance, AnswerLength
from policies.ranking import PoolLoad, RankedOption, price_of_time, value


class Informed:
    """Sends each request where it is worth most, given its answer's length and where its conversation was last.

    What engines have cached and forgotten it does not know; neither does a gateway.

    Args:
        site: The engines.
        drafter: The truth about its acceptance.
    """

    def __init__(self, site: Site, drafter: Drafter) -> None:
        self._site = site
        self._drafter = drafter
        self._loads = {name: _load(site, name) for name in site.engines}
        self._homes: dict[str, tuple[str, int]] = {}

    def order(self, request: SimRequest, decision: Decision, now_s: float) -> Sequence[Candidate]:
        answers = AnswerLength(0, request.output_tokens)
        options = [
            RankedOption(one.pool, self._loads[one.pool], Acceptance(self._length(request, one, now_s)), answers)
            for one in decision.candidates
        ]
        price = price_of_time(options)
        prompt = (request.prompt_tokens, *self._homes.get(request.session, ("", 0)))
        worth = [value(option, prompt, price) for option in options]
        return [decision.candidates[n] for n in sorted(range(len(worth)), key=lambda n: -worth[n])]

    def placed(self, request: SimRequest, now_s: float) -> None:
        assert request.candidate is not None
        self._loads[request.candidate.pool].begin(request.length)
        self._homes[request.session] = request.candidate.pool, request.prompt_tokens

    def ended(self, request: SimRequest, now_s: float) -> None:
        assert request.candidate is not None
        self._loads[request.candidate.pool].end(request.length)

    def _length(self, request: SimRequest, candidate: Candidate, now_s: float) -> float:
        return self._drafter.length(request.kind, self._site.drafts(candidate), now_s)


def _load(site: Site, pool: str) -> PoolLoad:
    engines = site.engines[pool]
    batch = engines[0].batch
    return PoolLoad([batch.step_s_of(size) for size in range(batch.seats + 1)], len(engines))


def informed_oracle(site: Site, drafter: Drafter, rng: Random) -> Arm:
    """Ranks with full knowledge."""
    return Informed(site, drafter)
