"""Finds a drafter that was trained for another model than the one it drafts for."""

import re

from policies import PoolFacts
from policies.conditions import short_name

# Trained for something else than the name says: drafter -> the model's version, and what is known.
_MISNAMED = {
    "kimi-k2.5-thinking-eagle3": (
        "2",
        "works with Kimi-K2-Thinking (text only, version 2) and not with the multimodal K2.5 (field report R1)",
    ),
}
_PLAIN = re.compile(r"\d(\.\d)?")
_VERSION = re.compile(r"(kimi-?k|qwen-?|glm-?|deepseek-?v)(\d)(?:\.?(\d)(?!\d))?(?![\dbm])", re.IGNORECASE)


def wrong_pair(facts: PoolFacts) -> str | None:
    """Returns what is wrong with a pool's pair of model and drafter; None if nothing is known against it."""
    if not facts.drafter or facts.drafter == "none":
        return None
    drafter = short_name(facts.drafter)
    model = _of(facts.family or "", facts.model_version) or _of(facts.model, facts.model_version)
    if model is None:
        return None
    if drafter.lower() in _MISNAMED:
        version, known = _MISNAMED[drafter.lower()]
        return None if model == ("kimi", version) else f"the drafter {drafter} {known}"
    trained = _of(drafter, None)
    if trained is None or trained == model:
        return None
    trained_for, drafts_for = (f"{series} {version}" for series, version in (trained, model))
    return f"the drafter {drafter} was trained for {trained_for} and drafts for {drafts_for}: at best it is slow"


def _of(name: str, version: str | None) -> tuple[str, str] | None:
    """Returns series and version that a name tells; a version that is stated outweighs it."""
    match = _VERSION.search(name)
    if match is None:
        return None
    series = re.sub(r"\W", "", match[1].lower()).removesuffix("k").removesuffix("v")
    if version is not None and _PLAIN.fullmatch(version):
        return series, version
    return series, ".".join(filter(None, (match[2], match[3])))
