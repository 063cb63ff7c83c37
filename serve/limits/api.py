"""`/admin/v1/usage`: shows operators who has used how much."""

from datetime import UTC, datetime
from typing import Any

import fastapi

from serve.errors import InvalidRequestError
from serve.limits.accounts import Accounts
from serve.limits.book import DIMENSIONS

_EVERYTHING = ",".join(DIMENSIONS)


def routes(accounts: Accounts) -> fastapi.APIRouter:
    """Returns the routes, on top of one replica's accounts."""
    router = fastapi.APIRouter()

    @router.api_route("/admin/v1/usage", methods=["GET", "HEAD"])
    async def usage(by: str = _EVERYTHING, since: str = "", until: str = "") -> dict[str, Any]:
        """Returns sums of usage over all replicas, a row for each set of values of the dimensions in `by`."""
        names = dimensions(by)
        return {"object": "list", "data": await accounts.usage(names, instant(since), instant(until))}

    return router


def dimensions(by: str) -> list[str]:
    """Returns the dimensions that a text names, separated by commas.

    Raises:
        InvalidRequestError: There is no such dimension.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    known = (*DIMENSIONS, "hour", "day")
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequestError(f"Usage has no {', '.join(unknown)}; it has {', '.join(known)}.", param="by")
    return names


def instant(text: str) -> datetime | None:
    """Returns a point in time, in UTC where the text does not say otherwise; None for no text.

    Raises:
        InvalidRequestError: It is no date in ISO format.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is no date such as 2026-11-01 or 2026-11-01T08:00.") from error
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError as error:
        raise InvalidRequestError(f"{text!r} is in no year from 1 to 9999 in UTC.") from error
