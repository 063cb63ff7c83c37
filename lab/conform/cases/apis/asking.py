"""Asking in an API, and the table that every API gets."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End, Turn
from lab.conform.case import Case, CaseResult, not_applicable, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab, Trial
from lab.scripted.arrival import Script

_NOT_SERVED = (404, 405, 501)
BOTH = {"whole": False, "streamed": True}


@dataclass(frozen=True, slots=True)
class ApiCase:
    """One rule that holds in every API; the members are those of `Case`."""

    name: str
    rule: str
    source: str
    check: Callable[[Api, Lab], Awaitable[CaseResult]]


def cases_of(api: Api, rows: tuple[ApiCase, ...]) -> tuple[Case, ...]:
    """Returns the cases of one API. Where a gateway does not serve it, they do not apply."""

    def check(row: ApiCase) -> Callable[[Lab], Awaitable[CaseResult]]:
        async def served(lab: Lab) -> CaseResult:
            reply = await send(api, lab, api.first(lab.model, "hello"))
            if reply.status in _NOT_SERVED:
                return not_applicable(f"{api.path} is HTTP {reply.status}")
            return await row.check(api, lab)

        return served

    return tuple(Case(f"{api.name}-{row.name}", row.rule, row.source, check(row)) for row in rows)


async def send(api: Api, lab: Lab, body: Any) -> Reply:
    """Send a body in an API."""
    return await lab.send(body, api.headers(lab.key), path=api.path)


async def ask(api: Api, lab: Lab, script: Script | None = None, **fields: Any) -> tuple[Turn, Trial]:
    """Send the first request of a conversation, which the engine answers by `script`, and read the answer."""
    trial = lab.trial(script)
    reply = await send(api, lab, {**api.first(lab.model, f"{trial.mark} hello"), **fields})
    return api.read(reply), trial


def at_engine(trial: Trial) -> dict[str, Any]:
    """Returns the last body that reached the engine; empty if none did."""
    body = json.loads(trial.arrivals[-1].body) if trial.arrivals else {}
    return body if isinstance(body, dict) else {}


def sound(turn: Turn, end: End = End.COMPLETE) -> bool:
    """Returns True for an answer that breaks no rule and ends as it should."""
    return not turn.faults and turn.end is end


def all_of(seen: dict[str, tuple[bool, str]]) -> CaseResult:
    """Returns a pass if every one of some trials is good, or else a failure that names those that are not."""
    wrong = [f"{name}: {said}" for name, (good, said) in seen.items() if not good]
    return passed_if(not wrong, "; ".join(wrong)[:600] or f"good: {', '.join(seen)}")
