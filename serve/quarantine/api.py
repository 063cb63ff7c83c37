"""`/admin/v1/quarantine`: shows operators the state of quarantine and takes their orders."""

from collections.abc import Iterable
from typing import Annotated, Any

import fastapi
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies import Cell, Policy, PolicyError, mask_of_class
from serve.config.problems import first_problem
from serve.errors import InvalidRequestError
from serve.proxy.headers import request_headers
from serve.quarantine.detector import Action, Order
from serve.quarantine.live_policy import QuarantinedPolicy
from serve.request.receive import read_body

_MAX_ORDER_BYTES = 64 * 1024
PREVIEW_HEADER = "x-specgate-preview"  # from the admin API: what would come of an order, which is not carried out
Text = Annotated[str, Field(min_length=1, max_length=500)]


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
