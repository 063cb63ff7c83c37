"""Public hazards and sound configurations as data, and what the advisories make of each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from policies import (
    Advisory,
    PolicySettings,
    PoolFacts,
    RequestFeatures,
    compile_policy,
    decide,
    facts_from_engine_args,
)
from policies.engine_args import default_runner

HERE = Path(__file__).parent
GOAL = 0.95  # the share of hazards to find
# A plain engine of which all is known, so that nothing is found by not knowing.
_PLAIN: dict[str, Any] = {
    "kind": "remote", "engine": "vllm", "drafter": "a-drafter", "num_speculative_tokens": 3, "hybrid": False,
    "prefix_caching": True, "async_scheduling": True, "tool_parser": "none", "reasoning_parser": "none",
}  # fmt: skip
_SETTINGS = {"tensor_parallel_size": 1, "page_size": 1, "mamba_radix_cache_strategy": "extra_buffer"}
_NO_DRAFTER = frozenset({"mtp", "ngram", "ngram_gpu", "suffix"})


class Entry(NamedTuple):
    """One configuration with the requests on which it was met.

    Attributes:
        source: Where to read of it; empty for a sound one.
        facts: Those that differ from a plain engine; None is a fact that nobody knows.
        reason: Why no advisory can keep drafts away from it without banning what is right; empty if one does.
    """

    id: str
    facts: Mapping[str, Any]
    requests: tuple[str, ...]
    source: str = ""
    reason: str = ""

    @property
    def pools(self) -> tuple[PoolFacts, PoolFacts]:
        """The speculating pool, and one beside it that does not."""
        stated = {**_PLAIN, **self.facts}
        stated["settings"] = {**_SETTINGS, **self.facts.get("settings", {})}
        if stated["engine"] == "vllm" and "runner" not in stated:
            stages = stated["settings"].get("pipeline_parallel_size", 1)
            version, hybrid = stated["engine_version"], stated["hybrid"]
            stated["runner"] = default_runner(stated["method"], version, hybrid=hybrid, stages=stages)
        if stated["method"] in _NO_DRAFTER and "drafter" not in self.facts:
            stated["drafter"] = "none"
        family, version = stated.pop("family", "llama"), stated.pop("model_version", None)
        own = facts_from_engine_args("m", "speculative", family, version, {}, stated)
        return own, facts_from_engine_args("m", "standard", family, version, {}, {**stated, "method": "none"})


def load(name: str) -> tuple[Entry, ...]:
    """Returns the entries of a file beside this one."""
    rows = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return tuple(Entry(**{**row, "requests": tuple(row["requests"])}) for row in rows)


def request_of(classes: str) -> RequestFeatures:
    """Returns a request of the classes `name+name`."""
    return RequestFeatures.of_classes("m", classes.split("+"))


def drafted(entry: Entry, advisories: Iterable[Advisory]) -> tuple[str, ...]:
    """Returns the entry's requests that would be drafted for."""
    policy = compile_policy(entry.pools, advisories, PolicySettings())
    return tuple(each for each in entry.requests if decide(policy, request_of(each), None).speculative)


class Recall(NamedTuple):
    """What the advisories make of the corpus.

    Attributes:
        missed: Hazards with requests that would be drafted for, and which.
        banned: Sound configurations with requests that would not be, and which.
    """

    hazards: int
    sound: int
    missed: Mapping[str, tuple[str, ...]]
    banned: Mapping[str, tuple[str, ...]]

    @property
    def hits(self) -> int:
        """The hazards of which no request would be drafted for."""
        return self.hazards - len(self.missed)

    @property
    def holds(self) -> bool:
        """True if enough hazards are found, and no sound configuration is banned."""
        return not self.banned and self.hits >= GOAL * self.hazards


def recall(advisories: Iterable[Advisory]) -> Recall:
    """Returns what the advisories make of the corpus."""
    known = tuple(advisories)
    hazards, sound = load("hazards.yaml"), load("sound.yaml")
    missed = {entry.id: left for entry in hazards if (left := drafted(entry, known))}
    allowed = {entry.id: drafted(entry, known) for entry in sound}
    held = {entry.id: tuple(each for each in entry.requests if each not in allowed[entry.id]) for entry in sound}
    return Recall(len(hazards), len(sound), missed, {name: requests for name, requests in held.items() if requests})
