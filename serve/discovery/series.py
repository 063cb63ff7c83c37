"""Prometheus text, read with tolerance: a line that is none is passed over."""

import re
from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

from serve.discovery.finding import shared

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')
_ENGINES_OWN = "vllm:cache_config_info"  # routers have series named `vllm:` as well, but no cache


class Series(NamedTuple):
    """One line of metrics."""

    name: str
    labels: dict[str, str]
    value: float


class EngineMetrics(NamedTuple):
    """The process behind an engine's metrics, as far as they tell.

    Attributes:
        started: When its processes started; empty if they do not say.
        drafts: It has counters that exist only where there is a drafter; None if it tells nothing of itself.
        draft_length: The most tokens of a draft.
    """

    started: frozenset[float]
    drafts: bool | None
    draft_length: int | None
    cache: dict[str, str]


def engine_metrics(text: str) -> EngineMetrics:
    series = list(_series(text))
    started = frozenset(each.value for each in series if each.name == "process_start_time_seconds")
    speculative = [each for each in series if each.name.startswith("vllm:spec_decode_num_")]
    places = {each.labels["position"] for each in speculative if each.labels.get("position", "").isdecimal()}
    caches = [each.labels for each in series if each.name == _ENGINES_OWN]
    drafts = True if speculative else False if caches else None
    return EngineMetrics(started, drafts, len(places) or None, shared(caches))


def _series(text: str) -> Iterator[Series]:
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if isfinite(value):  # nan would be another value each time
            yield Series(match[1], dict(_LABEL.findall(match[2] or "")), value)
