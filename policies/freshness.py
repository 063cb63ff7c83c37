"""How far the advisories reach: when they were last checked, against which engines, and what that makes suspect."""

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from packaging.version import Version

from policies.advisory import EFFECTS, Advisory, Cure, is_newer

_SIMULATED = "sim"  # the simulated engine does what its settings say
MAX_AGE_DAYS = 45  # a monthly round, half a month late
NEWER_ENGINE = "engine-newer-than-checked"
"""The id of the reason against an engine that is newer than all that is known; a waiver may name it."""
EXPIRED = "advisories-expired"
"""The id of the reason against all drafts once nobody vouches for the advisories any more; a waiver may name it."""
NOT_QUALIFIED = "engine-not-qualified"
"""The id of the reason against an engine that was not qualified, where it has to be; a waiver may name it."""


def stale(
    advisories: Iterable[Advisory], engines: Mapping[str, str], today: date, max_age_days: int = MAX_AGE_DAYS
) -> dict[str, str]:
    """Returns why each advisory that should be checked again should be, by id. Engines are given with the version in
    use. Withdrawn advisories are kept for the record and never stale.
    """
    reasons = {advisory.id: _why(advisory, engines, today, max_age_days) for advisory in advisories}
    return {name: reason for name, reason in reasons.items() if reason}


def age_days(advisories: Iterable[Advisory], today: date) -> int | None:
    """Returns the days since the advisory that waits longest was checked; None if nobody has checked any. Withdrawn
    ones don't count.
    """
    days = [each.checked.date for each in advisories if each.checked and each.status != "withdrawn"]
    return (today - min(days)).days if days else None


def newest_checked(advisories: Iterable[Advisory]) -> dict[str, str]:
    """Returns, for each engine, the newest version against which any advisory was checked."""
    newest: dict[str, str] = {}
    for each in advisories:
        for engine, version in each.checked.engine_versions.items() if each.checked else ():
            newest[engine] = max(newest.get(engine, version), version, key=Version)
    return dict(sorted(newest.items()))


def newer_engine(advisories: Iterable[Advisory]) -> Advisory | None:
    """Returns the suspicion of engines newer than every check, or of a kind that none was held to.

    A new version may break what the last one did right, and to a misspelt engine no advisory speaks. None of the
    advisories need name a version; then there is nothing to be newer than.
    """
    newest = newest_checked(advisories)
    if not newest:
        return None
    versions = " and ".join(f"{engine} {version}" for engine, version in newest.items())
    return _about_drafts(
        NEWER_ENGINE,
        "An engine newer than every version that the advisories were checked against, or another one",
        f"Advisories were checked up to {versions}; what drafts break on a newer or another one is not known.",
        "Take newer advisories, which were checked against this engine",
        "Probe the pool with `specgate probe`, and state in `proven` what it shows to be right",
        affects=(
            *(
                {"method": "*", "engine": engine, "engine_version": f">{Version(version).public}"}
                for engine, version in newest.items()
            ),
            {"method": "*", "engine": {"not": [*newest, _SIMULATED]}},
        ),
    )


def not_qualified(quarantined: bool) -> Advisory:
    """Returns the rule about engines of which nobody has shown what their drafts do right. If they are quarantined,
    they are kept from what drafts could break, also by an optimist.
    """
    return _about_drafts(
        NOT_QUALIFIED,
        "A drafting engine that was not qualified",
        "Nobody has shown of this engine, with these arguments, that its drafts change nothing.",
        "Qualify the engine with `specgate qualify`, into the folder `policy.qualifications`",
        status="confirmed" if quarantined else "suspected",
    )


def without_knowledge() -> Advisory:
    """Returns the suspicion that holds once the signed index has expired: hazards may have been found since."""
    return _about_drafts(
        EXPIRED,
        "The signed index of advisories has expired",
        "Nobody vouches for the advisories any more; what was found since they were signed is not known.",
        "Put a newer signed index into the folder of advisories",
    )


def _about_drafts(
    name: str,
    title: str,
    summary: str,
    *cures: str,
    status: str = "suspected",
    affects: tuple[Mapping[str, Any], ...] = ({"method": "*"},),
) -> Advisory:
    """Returns what speaks against all drafts that somebody could take for right: of calls, JSON and numbers."""
    return Advisory(
        name, title, summary, status, "medium", affects, ("tools", "json", "logprobs"),
        effects=EFFECTS,
        cures=tuple(Cure(text, {}) for text in cures),
    )  # fmt: skip


def _why(advisory: Advisory, engines: Mapping[str, str], today: date, max_age_days: int) -> str | None:
    checked = advisory.checked
    if advisory.status == "withdrawn":
        return None
    if checked is None:
        return "never checked"
    for engine, version in checked.engine_versions.items():
        if engine in engines and is_newer(engines[engine], version):
            return f"checked up to {engine} {version}; {engines[engine]} is in use"
    age = (today - checked.date).days
    if age < 0:
        return f"checked on {checked.date}, a day that has not come"
    return f"checked {age} days ago, on {checked.date}" if age > max_age_days else None
