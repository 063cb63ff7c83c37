"""Has every pool copy identifiers, now and then and after each change of its engine, and hands on what came of it.

Each gateway replica asks for its own share, and the shared detector adds up, so that nobody has to be elected and there
is no state to lose.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random, SystemRandom
from typing import Any

from policies import Candidate, Decision, PoolFacts
from serve.config.access import PRIORITIES
from serve.config.gateway import GatewayConfig
from serve.config.quarantine import EchoConfig
from serve.echo.prompt import NAMES, EchoPrompt
from serve.errors import EngineError, GatewayError
from serve.proxy.attempts import Attempts, Held
from serve.proxy.routed_request import Attribution, RoutedRequest
from serve.request.body_reader import BodyReader
from serve.request.completion import CHAT_PATH
from serve.routing.fair_queue import Asker
from serve.routing.pool import Pool
from serve.telemetry.metrics import Metrics

log = logging.getLogger("ray.serve.specgate.echo")

LOOK_S = 1.0
_BATCH = 8  # requests at once: such faults need a batch
_SETTLED_S = 60.0  # after the start, until engines have reported what they are
_OF_A_BUILD = 400  # requests to one build, of all replicas together, that need not wait
_MOST_AT_ONCE = 400  # requests: enough for a finding
_MOST_LOST = 24  # answers without a call, after which a model is not asked out of turn
_MOST_TOKENS = 1024
_MOST_BYTES = 1 << 20
_TIMEOUT_S = 120.0
# Nobody is charged, and it waits for all others; the colon is one that no tenant's name may have.
_PLATFORM = Asker("specgate:echo", rank=len(PRIORITIES) - 1)

PoolKey = tuple[str, str]
Copied = Callable[[PoolFacts, str, int, int], None]
"""Takes a pool, its build, how many identifiers can be judged, and how many of them are changed."""
IsJudged = Callable[[PoolFacts, str], bool]
"""Tells whether there was a finding on a pool's build."""


@dataclass
class EchoBudget:
    """Tokens, in one gateway replica: a share of those of answers, and a few with each round.

    What the first requests to a build take beyond that is owed, and later rounds wait until it is paid. So the canary
    takes at most `share` of the tokens of answers, `least` requests a round, and one debt.

    Attributes:
        gateways: Replicas among which `least` is divided.
        credit: Tokens that may be taken; below 0 they are owed.
    """

    terms: EchoConfig
    gateways: int
    due_s: float
    credit: float = 0.0
    cost: float = 1000.0
    _answered: float = 0.0

    def due(self, now_s: float, answered: float) -> int:
        """Returns how many requests are due; none between rounds. `answered` counts the tokens of all answers of the
        pool so far.
        """
        if now_s < self.due_s:
            return 0
        self.due_s = now_s + self.terms.every_s
        self.credit += self.terms.share * (answered - self._answered) + self.cost * self.terms.least / self.gateways
        self._answered = answered
        self.credit = min(self.credit, _MOST_AT_ONCE * self.cost)
        return max(0, int(self.credit / self.cost))

    def spend(self, tokens: int) -> None:
        """Takes what a request has used."""
        self.credit -= tokens
        self.cost += 0.1 * (tokens - self.cost)


@dataclass
class _Account:
    """One pool, as this replica asks it.

    Attributes:
        lost: Answers of this build in a row that copy nothing.
    """

    budget: EchoBudget
    build: str = ""
    asked: int = 0
    lost: int = 0


def build_of(facts: PoolFacts) -> str:
    """Returns a name of a pool's engine, its version, drafter and settings."""
    names = ("engine", "engine_version", "method", "drafter", "num_speculative_tokens", "runner")
    return " ".join(map(str, (*(getattr(facts, name) for name in names), *sorted(facts.settings.items()))))


class EchoCanary:
    """The canary of one gateway replica. Its attempts are apart from those of clients, so that no load or limit counts
    them. Chance makes identifiers that nobody has seen, and the moments at which replicas begin.
    """

    def __init__(
        self,
        terms: EchoConfig,
        config: GatewayConfig,
        facts: Callable[[], Iterable[PoolFacts]],
        pools: Mapping[PoolKey, Pool],
        attempts: Attempts,
        copied: Copied,
        is_judged: IsJudged,
        answered: Callable[[], Mapping[PoolKey, float]],
        gateways: int = 1,
        chance: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms = terms
        self._facts = facts
        self._pools = pools
        self._attempts = attempts
        self._copied = copied
        self._is_judged = is_judged
        self._answered = answered
        self._gateways = gateways
        self._chance = chance or SystemRandom()
        self._clock = clock
        self._reader = BodyReader(config)
        self._seed = self._chance.randrange(2**62)
        self._numbers = count()
        self._accounts: dict[PoolKey, _Account] = {}
        self._begins_s = clock() + _SETTLED_S
        self.tokens: Counter[PoolKey] = Counter()
        self.identifiers: Counter[tuple[str, str, str]] = Counter()

    async def run(self) -> None:
        """Looks for ever whether a pool is to be asked."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Asks the pools that are due."""
        if self._clock() >= self._begins_s:
            answered = self._answered()
            await asyncio.gather(*(self._look_at(facts, answered) for facts in self._facts()))

    async def _look_at(self, facts: PoolFacts, answered: Mapping[PoolKey, float]) -> None:
        key = facts.model, facts.pool
        pool = self._pools[key]
        if not pool.ready or pool.occupancy().waiting:
            return  # clients come first
        account = self._accounts.get(key)
        if account is None:
            first_s = self._clock() + self._chance.random() * self._terms.every_s
            account = self._accounts[key] = _Account(EchoBudget(self._terms, self._gateways, first_s))
        if (build := build_of(facts)) != account.build:
            account.build, account.asked, account.lost = build, 0, 0
        requests = account.budget.due(self._clock(), answered.get(key, 0.0))
        if self._is_fresh(facts, account):
            requests = max(requests, _BATCH)
        while requests > 0:
            batch = min(requests, _BATCH)
            requests -= batch
            done = await asyncio.gather(*(self._ask(facts, account) for _ in range(batch)))
            if not all(done):
                return  # it is busy or down: another time

    def _is_fresh(self, facts: PoolFacts, account: _Account) -> bool:
        if account.asked * self._gateways >= _OF_A_BUILD or account.lost >= _MOST_LOST:
            return False
        return not self._is_judged(facts, account.build)

    async def _ask(self, facts: PoolFacts, account: _Account) -> bool:
        """Has a pool copy one prompt's identifiers; returns False if it did not answer."""
        build, prompt = account.build, EchoPrompt.of(next(self._numbers), self._seed)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._answer(facts, prompt)
        except (GatewayError, TimeoutError) as error:
            log.info("%s/%s was not asked to copy: %s", facts.model, facts.pool, error)
            return False
        key = facts.model, facts.pool
        tokens = _tokens_of(answer)
        self.tokens[key] += tokens
        account.budget.spend(tokens)
        account.asked += 1
        changes = prompt.changes(answer)
        if changes is None:
            account.lost += 1
            self.identifiers[*key, "lost"] += NAMES
            return True
        account.lost = 0
        missing = changes.count("missing")
        self.identifiers.update({(*key, change): number for change, number in Counter(changes).items()})
        self.identifiers[*key, "copied"] += NAMES - len(changes)
        self._copied(facts, build, NAMES - missing, len(changes) - missing)
        return True

    async def _answer(self, facts: PoolFacts, prompt: EchoPrompt) -> dict[str, Any]:
        """Returns a pool's whole answer.

        Raises:
            GatewayError: There is none.
        """
        body = {**prompt.body(stream=False), "model": facts.model, "temperature": 0, "max_tokens": _MOST_TOKENS}
        read = self._reader.read(json.dumps(body).encode(), {}, lambda _: True)
        candidate = Candidate(facts.pool, opt_out=False, speculative=facts.speculative)
        name = f"echo-{self._chance.getrandbits(64):016x}"
        request = RoutedRequest(
            path=CHAT_PATH,
            headers={},
            request_id=name,
            body=read.body,
            patch=read.patch,
            parsed=read.parsed,
            features=read.features,
            decision=Decision(facts.model, (), candidates=(candidate,)),
            guarded=False,
            attempt_numbers=count(1),
            attribution=Attribution(engine_id=name),
            asker=_PLATFORM,
        )
        async with Held() as held:
            attempt = await self._attempts.first_response(request, (candidate,), held)
            if attempt.response.status != 200:
                raise EngineError(f"the engine answered {attempt.response.status}")
            try:
                answer = json.loads(await attempt.body(_MOST_BYTES))
            except (ValueError, RecursionError) as error:
                raise EngineError("the answer is no JSON") from error
            if not isinstance(answer, dict):
                raise EngineError("the answer is no object")
            return answer


def _tokens_of(answer: Mapping[str, Any]) -> int:
    """Returns what an answer took, or as much as it can have if its engine does not tell."""
    usage = answer.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else 2 * _MOST_TOKENS


def show_echo(metrics: Metrics, canary: EchoCanary) -> None:
    """Shows what pools have copied for one gateway replica, and what that took: no tenant's usage has it."""
    metrics.read(
        "counter", "specgate_echo_identifiers_total", "Identifiers that the echo canary had copied, by outcome",
        ["model", "pool", "outcome"], canary.identifiers.items,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_echo_tokens_total", "Tokens that the echo canary used, charged to no tenant",
        ["model", "pool"], canary.tokens.items,
    )  # fmt: skip
