"""How severe each defect is, and with which severities an answer still reaches its client: when, and why.

Whoever finds a defect names its severity, which is the same wherever that defect is found (the table of
docs/explanation/guard.md); those that hang on settings or on the request are below. What then becomes of the answer:

| severity | another attempt may follow | none can do better |
|---|---|---|
| `HARD` | held, run again | an error; sent and marked with `on_failure: unclean` |
| `SOFT` | held, run again | sent and marked; an error in mode `strict` |
| `SUSPECT` | held, run again once | sent and marked |
| `NOTE` | sent | sent |

So arguments with a member that the schema forbids reach the client if the tool is not `strict` and no rerun was better:
a model that writes them again means them, its client asked for no guarantee, and would rather judge such a call than
get none. With a strict tool, or in mode `strict`, they are `HARD`, and only `on_failure: unclean` lets them out. What
becomes of arguments whose schema could not be judged is the setting `unjudged`.
"""

from __future__ import annotations

from enum import StrEnum

from serve.config.guard import GuardConfig


class Severity(StrEnum):
    """The consequence of a defect.

    `HARD`: the answer must not leave as it is. `SOFT`: another pool may do better, so it is rerun; if it persists, the
    model means it, and it is delivered and marked. `SUSPECT`: what may be damage and may be meant, so that it is rerun
    once; if it persists, the model means it, and it is delivered and marked whatever the mode. `NOTE`: it is only
    counted.
    """

    HARD = "hard"
    SOFT = "soft"
    SUSPECT = "suspect"
    NOTE = "note"


GRAVEST_FIRST = (Severity.HARD, Severity.SOFT, Severity.SUSPECT, Severity.NOTE)
_ALL = frozenset(Severity)


def severity_of_mismatch(settings: GuardConfig, *, strict: bool) -> Severity:
    """Returns the severity of whole JSON that does not fit its schema.

    Args:
        settings: Of the guard.
        strict: The schema is; then it is a promise to the client.
    """
    if strict or settings.mode == "strict":
        return Severity.HARD
    return Severity.SOFT if settings.schema == "enforce" else Severity.NOTE


def severity_of_unjudged(settings: GuardConfig) -> Severity:
    """Returns the severity of JSON whose schema could not be applied, which no other pool would change."""
    return Severity.HARD if settings.unjudged == "refuse" else Severity.NOTE


def severity_of_near_copy(settings: GuardConfig) -> Severity:
    """Returns the severity of a valid call that names what is nearly in the prompt."""
    return Severity.SUSPECT if settings.near_copies == "rerun" else Severity.NOTE


def tolerated(settings: GuardConfig, *, last: bool, suspected: bool) -> frozenset[Severity]:
    """Returns the severities that hold nothing of an attempt back.

    Args:
        settings: Of the guard.
        last: No other attempt will follow.
        suspected: An earlier attempt held a suspicion, so that this one is its rerun.
    """
    if settings.mode == "observe":
        return _ALL
    if last:
        return delivered_at_last(settings)
    return frozenset({Severity.SUSPECT, Severity.NOTE} if suspected else {Severity.NOTE})


def delivered_at_last(settings: GuardConfig) -> frozenset[Severity]:
    """Returns the severities with which an answer reaches its client once no other attempt can do better."""
    if settings.mode == "strict":
        return frozenset({Severity.SUSPECT, Severity.NOTE})
    return _ALL if settings.on_failure == "unclean" else _ALL - {Severity.HARD}
