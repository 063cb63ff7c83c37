"""`/v1/quarantine`: what operators see of quarantine and what they can order."""

from typing import Annotated, Any

import fastapi
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies import Cell, Policy, PolicyError, mask_of_class
from serve.errors import InvalidRequestError
from serve.quarantine.detector import Action
from serve.quarantine.judge import Order
from serve.quarantine.live import QuarantineView

Text = Annotated[str, Field(min_length=1, max_length=500)]


class OrderBody(BaseModel):
    """The body of `POST /v1/quarantine`.

    Attributes:
        speculative: With speculation or without; left out, whatever the pool does when nothing speaks against it.
    """

    model_config = ConfigDict(extra="forbid")
    action: Action
    model: Text
    pool: Text
    request_class: Text
    reason: Text
    speculative: bool | None = None


def routes(view: QuarantineView) -> fastapi.APIRouter:
    """The routes, on top of one replica's view."""
    router = fastapi.APIRouter()

    @router.get("/v1/quarantine")
    async def show() -> dict[str, Any]:
        """Every cell with its clean-rate, bounds and status."""
        return report(view)

    @router.post("/v1/quarantine")
    async def order(request: fastapi.Request) -> dict[str, Any]:
        """Quarantine, lift or pin one cell; the answer is the new list."""
        await view.order(parse_order(await request.body(), view.policy))
        return report(view)

    return router


def report(view: QuarantineView) -> dict[str, Any]:
    """The list as JSON values."""
    return {"object": "list", "data": view.cells()}


def parse_order(body: bytes, policy: Policy) -> Order:
    """Read an order and hold it against the pools that there are.

    Args:
        body: JSON.
        policy: Knows the pools.

    Raises:
        InvalidRequestError: The order makes no sense; the message says why.
    """
    try:
        told = OrderBody.model_validate_json(body)
        mask_of_class(told.request_class)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequestError(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from error
    except PolicyError as error:
        raise InvalidRequestError(str(error), "request_class") from error
    model = policy.models.get(told.model)
    if model is None:
        raise InvalidRequestError(f"No model {told.model!r}; there are {_listed(policy.models)}.", "model")
    ways = {option.way == "speculative" for option in model.options if option.pool == told.pool}
    if not ways:
        pools = _listed({option.pool for option in model.options})
        raise InvalidRequestError(f"{told.model!r} has no pool {told.pool!r}; it has {pools}.", "pool")
    speculative = (True in ways) if told.speculative is None else told.speculative
    if speculative not in ways:
        how = "with" if speculative else "without"
        raise InvalidRequestError(f"{told.model}/{told.pool} never answers {how} speculation.", "speculative")
    return Order(Cell(told.model, told.pool, speculative, told.request_class), told.action, told.reason)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
