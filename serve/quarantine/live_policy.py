"""The policy in force in one gateway replica: which cells are out, by which terms chance draws, and what came of it.

What a draw makes of a decision is in `policies.quarantine`. At the end stand the routes of the admin API, which show
operators the state of quarantine and take their orders.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import random
from typing import Annotated, Any

import fastapi
from msgspec import to_builtins
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies import (
    Cell,
    Draw,
    Policy,
    PolicyError,
    Trial,
    TrialTerms,
    is_suspected,
    mask_of_class,
    quarantine,
    reference_pool,
)
from serve.config.guard import GuardConfig
from serve.config.problems import first_problem
from serve.config.quarantine import QuarantineConfig
from serve.errors import InvalidRequestError
from serve.guard.attempt_result import AttemptResult
from serve.proxy.headers import request_headers
from serve.quarantine.detector import Action, Detector, DetectorTerms, EchoCount, EchoKey, Order, sample_share
from serve.quarantine.shared_detector import SharedDetector
from serve.request.receive import read_body
from serve.shared.link import Link

log = logging.getLogger("ray.serve.specgate.quarantine")

PERIOD_S = 1.0
_MAX_ORDER_BYTES = 64 * 1024
PREVIEW_HEADER = "x-specgate-preview"  # from the admin API: what would come of an order, which is not carried out
Text = Annotated[str, Field(min_length=1, max_length=500)]


def trial_terms(config: QuarantineConfig, guards: Mapping[str, GuardConfig], policy: Policy) -> dict[str, TrialTerms]:
    """Returns on which terms the pools of a model are compared, for models with a reference and a guard that checks."""
    return {
        model: TrialTerms(
            reference,
            config.probe_share if guard.heals else 0.0,  # without reruns, the client would see what a probe breaks
            sample_share(config),
            guard.heals,
        )
        for model, guard in guards.items()
        if guard.mode != "off" and model in policy.models and (reference := reference_pool(policy, model))
    }


class LivePolicy:
    """The policy in force in one gateway replica.

    Attributes:
        policy: Replaced as a whole; requests under way keep their decision.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def adopt(self, policy: Policy) -> None:
        self.policy = policy

    def terms(self, model: str) -> TrialTerms | None:
        """Returns on which terms a model's pools are compared; None if they are not."""
        return None

    def draw(self, model: str) -> Draw | None:
        """Returns what chance draws for one request; None if the model's pools are not compared."""
        return None

    def found(self, trial: Trial, finding: str) -> None:
        """Takes what came of a trial."""

    def trusts(self, cell: Cell) -> bool:
        """Returns whether a cell's answers are known to be clean; False where nobody counts."""
        return False

    def copied(self, count: EchoCount) -> None:
        """Takes what a pool has copied of the echo canary's identifiers."""

    def echo_build(self, key: EchoKey) -> tuple[str, bool]:
        """Returns which build of a pool's engine was asked to copy last, and whether there was a finding on it."""
        return "", False


class QuarantinedPolicy(LivePolicy):
    """A live policy without the cells that are in quarantine.

    Chance gives numbers from 0 to 1, each as likely; nobody who writes requests may know the next one.
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
        self._shared = SharedDetector(link, lambda cell: is_suspected(self.policy, cell), clock)
        self._chance = chance
        self._clean: frozenset[Cell] = frozenset()
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Decides by another policy from now on, without the cells in quarantine."""
        references = {model: pool for model in policy.models if (pool := reference_pool(policy, model))}
        self._shared.detector.terms = DetectorTerms(self._config, references)
        self._terms = trial_terms(self._config, self._guards, policy)
        self.policy = quarantine(policy, self._shared.detector.quarantined())
        self._clean = self._unsuspected(self._clean)

    def terms(self, model: str) -> TrialTerms | None:
        return self._terms.get(model)

    def draw(self, model: str) -> Draw | None:
        terms = self._terms.get(model)
        return None if terms is None else Draw(terms, self._chance(), self._chance())

    def __call__(self, result: AttemptResult) -> None:
        """Counts the outcome of a first attempt; reruns are no measure of a pool, as only failures run again."""
        if result.verdict.counts and result.attempt == 0:
            cell = Cell(result.model, result.pool, result.speculative, result.request_class)
            self._shared.count(cell, str(result.verdict.outcome))

    def found(self, trial: Trial, finding: str) -> None:
        side = "own" if trial.first == trial.subject else "reference"
        self._shared.count_trial(trial.cell, f"{side}_{finding}", trial.share)

    def trusts(self, cell: Cell) -> bool:
        """Returns whether a cell's answers have been clean, and no advisory warns of it."""
        return cell in self._clean

    def copied(self, count: EchoCount) -> None:
        self._shared.count_echo(count)

    def echo_build(self, key: EchoKey) -> tuple[str, bool]:
        return self._shared.detector.echo_build(key)

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
        return self._cells_of(self._shared.detector)

    def preview(self, order: Order) -> list[dict[str, Any]]:
        """Returns what `cells` would be after an order, as far as this replica knows."""
        return self._cells_of(self._shared.preview(order))

    def _cells_of(self, detector: Detector) -> list[dict[str, Any]]:
        pools = {(facts.model, facts.pool) for facts in self.policy.facts}
        return [cell for cell in detector.view() if (cell["model"], cell["pool"]) in pools]

    def changes(self) -> list[dict[str, Any]]:
        """Returns the last changes of cells of the current pools, newest first, for operators."""
        pools = {(facts.model, facts.pool) for facts in self.policy.facts}
        found = [change for change in self._shared.detector.changes() if change.cell[:2] in pools]
        return [{**change.cell._asdict(), **to_builtins(change)} for change in found]

    def detector_age_s(self) -> float:
        """Returns the seconds since the shared detector last answered this replica."""
        return self._shared.age_s

    def _apply(self) -> None:
        """Puts the detector's state into effect."""
        detector = self._shared.detector
        self._clean = self._unsuspected(detector.clean(self._clean))
        before = self.policy.quarantined
        now = detector.quarantined()
        if now == before:
            return
        for cells, why in _grouped({cell: now[cell].why for cell in now.keys() - before.keys()}):
            log.warning("quarantine: %s is out: %s", cells, why)
        for cells, why in _grouped({cell: detector.why(cell) for cell in before.keys() - now.keys()}):
            log.warning("quarantine: %s is back: %s", cells, why)
        self.policy = quarantine(self.policy, now)

    def _unsuspected(self, cells: Iterable[Cell]) -> frozenset[Cell]:
        return frozenset(cell for cell in cells if not is_suspected(self.policy, cell))


def _grouped(reasons: Mapping[Cell, str]) -> Iterator[tuple[str, str]]:
    """Yields cells, those of one pool that have the same reason as one text, and the reason."""
    groups: dict[tuple[str, str, bool, str], list[Cell]] = {}
    for cell, why in sorted(reasons.items()):
        groups.setdefault((cell.model, cell.pool, cell.speculative, why), []).append(cell)
    for (*_, why), (first, *others) in groups.items():
        yield f"{first} and {len(others)} more classes" if others else str(first), why


class OrderBody(BaseModel):
    """The body of `POST /admin/v1/quarantine`.

    Attributes:
        speculative: With speculation or without; by default, what the pool does if nothing speaks against it.
        operator: Id of the operator's key; the admin API writes it, whatever a client does.
    """

    model_config = ConfigDict(extra="forbid")
    action: Action
    model: Text
    pool: Text
    request_class: Text
    reason: Text
    speculative: bool | None = None
    operator: Annotated[str, Field(max_length=500)] = ""


def routes(quarantine: QuarantinedPolicy) -> fastapi.APIRouter:
    """Returns the routes, on top of one replica's quarantine."""
    router = fastapi.APIRouter()

    @router.api_route("/admin/v1/quarantine", methods=["GET", "HEAD"])
    async def show() -> dict[str, Any]:
        """Shows every cell with its clean rate, bounds and status."""
        return _listing(quarantine.cells())

    @router.post("/admin/v1/quarantine")
    async def order(request: fastapi.Request) -> dict[str, Any]:
        """Quarantines, lifts or pins one cell; responds with the new list, or with what it would be."""
        headers = request_headers(request.headers.raw)
        body = await read_body(request.receive, headers, _MAX_ORDER_BYTES)
        parsed = parse_order(body, quarantine.policy)
        if PREVIEW_HEADER in headers:
            return _listing(quarantine.preview(parsed))
        await quarantine.order(parsed)
        return _listing(quarantine.cells())

    return router


def _listing(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": cells}


def parse_order(body: bytes, policy: Policy) -> Order:
    """Parses an order and checks it against the existing pools.

    Raises:
        InvalidRequestError: The order makes no sense; the message says why.
    """
    try:
        order = OrderBody.model_validate_json(body)
        mask_of_class(order.request_class)
    except ValidationError as error:
        raise InvalidRequestError(first_problem(error, "the body")) from error
    except PolicyError as error:
        raise InvalidRequestError(str(error), param="request_class") from error
    model = policy.models.get(order.model)
    if model is None:
        raise InvalidRequestError(f"No model {order.model!r}; there are {_listed(policy.models)}.", param="model")
    choices = {option.mode == "speculative" for option in model.options if option.pool == order.pool}
    if not choices:
        pools = _listed({option.pool for option in model.options})
        raise InvalidRequestError(f"{order.model!r} has no pool {order.pool!r}; it has {pools}.", param="pool")
    speculative = (True in choices) if order.speculative is None else order.speculative
    if speculative not in choices:
        how = "with" if speculative else "without"
        raise InvalidRequestError(f"{order.model}/{order.pool} never answers {how} speculation.", param="speculative")
    return Order(
        Cell(order.model, order.pool, speculative, order.request_class), order.action, order.reason, order.operator
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
