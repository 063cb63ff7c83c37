"""Putting a gateway to the cases, one after the other."""

import time
from collections.abc import Callable, Sequence

import aiohttp

from serve.errors import ConfigError
from serve.tools.conform.case import Case, Result, Verdict
from serve.tools.conform.lab import Lab
from serve.tools.conform.report import Report, Row

_TRANSPORT = (aiohttp.ClientError, OSError, TimeoutError)
_SHAPE = (LookupError, TypeError, ValueError, AttributeError)  # of reading JSON that is not what it should be


def select(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The named cases, or all."""
    if unknown := set(names) - {case.name for case in cases}:
        raise ConfigError(f"no such case: {', '.join(sorted(unknown))}; known: {', '.join(c.name for c in cases)}")
    return [case for case in cases if not names or case.name in names]


async def run(lab: Lab, cases: Sequence[Case], told: Callable[[Row], None] = lambda _: None) -> Report:
    """Run the cases in their order.

    Args:
        lab: The gateway between its client and its engine.
        cases: What to try.
        told: Hears of each row as it is done.

    Raises:
        ConfigError: The gateway does not answer a clean request, so that nothing can be said of it.
    """
    if refusal := await lab.settle():
        raise ConfigError(
            f"{lab.url} does not answer a chat completion for the model {lab.model!r} ({refusal}). "
            f"Point it at {lab.engine.url}/v1 as the one engine of that model; --key gives the token that it wants."
        )
    rows = []
    for case in cases:
        started = time.monotonic()
        result = await _result(lab, case)
        rows.append(Row(case, result, time.monotonic() - started))
        told(rows[-1])
    return Report(lab.url, lab.model, tuple(rows))


async def _result(lab: Lab, case: Case) -> Result:
    """Each case begins with a gateway that serves: what one breaks is not held against the next."""
    if refusal := await lab.settle():
        return Result(
            Verdict.FAIL, f"still refuses clean requests {lab.pace.settle_s:g} s after the case before: {refusal}"
        )
    try:
        return await case.check(lab)
    except _TRANSPORT as error:
        return Result(Verdict.FAIL, f"the connection to the gateway failed: {type(error).__name__} {error}".strip())
    except _SHAPE as error:
        return Result(Verdict.FAIL, f"what arrived has not the shape of OpenAI's API: {type(error).__name__} {error}")
    finally:
        lab.engine.forget()
