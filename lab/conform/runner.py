"""Runs the cases against a gateway, one after the other."""

import time
from collections.abc import Callable, Sequence

import aiohttp

from lab.conform.case import Case, CaseResult, failed
from lab.conform.cases.apis import API_CASES
from lab.conform.lab import Lab
from lab.conform.report import CaseRun, ConformanceReport
from serve.errors import ConfigError

_TRANSPORT = (aiohttp.ClientError, OSError, TimeoutError)
_SHAPE = (LookupError, TypeError, ValueError, AttributeError)  # raised when JSON is not of the expected shape


def cases_for(apis: Sequence[str]) -> list[Case]:
    """Returns the cases of some APIs.

    Raises:
        ConfigError: There are none of a given API.
    """
    if unknown := set(apis) - API_CASES.keys():
        raise ConfigError(f"no such API: {', '.join(sorted(unknown))}; known: {', '.join(API_CASES)}")
    return [case for api in API_CASES if api in apis for case in API_CASES[api]]


def select(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Returns the named cases, or all of them.

    Raises:
        ConfigError: There is no case of a given name.
    """
    if unknown := set(names) - {case.name for case in cases}:
        raise ConfigError(f"no such case: {', '.join(sorted(unknown))}; known: {', '.join(c.name for c in cases)}")
    return [case for case in cases if not names or case.name in names]


async def run(lab: Lab, cases: Sequence[Case], done: Callable[[CaseRun], None] = lambda _: None) -> ConformanceReport:
    """Run the cases in order.

    Args:
        lab: The gateway between its client and its engine.
        cases: The cases to run.
        done: Called with each case's outcome.

    Raises:
        ConfigError: The gateway does not even answer a clean request, so no case could say anything.
    """
    if refusal := await lab.settle():
        raise ConfigError(
            f"{lab.url} does not answer a chat completion for the model {lab.model!r} ({refusal}). "
            f"Configure {lab.engine.url}/v1 as the only engine of that model, and pass its token with --key."
        )
    runs = []
    for case in cases:
        started = time.monotonic()
        result = await _result(lab, case)
        runs.append(CaseRun(case, result, time.monotonic() - started))
        done(runs[-1])
    return ConformanceReport(lab.url, lab.model, tuple(runs))


async def _result(lab: Lab, case: Case) -> CaseResult:
    """Run one case, once the gateway serves again: damage done by one case is not held against the next."""
    if refusal := await lab.settle():
        return failed(f"still refuses clean requests {lab.pace.settle_s:g} s after the previous case: {refusal}")
    try:
        return await case.check(lab)
    except _TRANSPORT as error:
        return failed(f"the connection to the gateway failed: {type(error).__name__} {error}".strip())
    except _SHAPE as error:
        return failed(f"the response does not have the shape of OpenAI's API: {type(error).__name__} {error}")
    finally:
        lab.engine.forget()
