"""Exploration: a pool that did badly gets one request now and then, or nobody would learn that it has recovered."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from policies.acceptance import Acceptance
from policies.ranking import Prompt, RankedOption, ranked
from policies.step_times import StepModel

UNHEARD_S = 3.0  # without an answer
UNHEARD_ANSWERS = 50  # of such requests from other pools meanwhile: exploring may be slow, so that little is worth it
_LARGEST = 1024  # callers choose the classes

ExploredKey = tuple[str, str, str]  # model, pool, request class


class Hope(NamedTuple):
    """The options as they would be if one of them had recovered."""

    key: ExploredKey
    number: int
    options: tuple[RankedOption, ...]

    def is_best(self, tiers: Sequence[int], prompt: Prompt) -> bool:
        """Returns True if a request with this prompt would go there."""
        order = ranked(self.options, tiers, prompt)
        return (order[0] if order else 0) == self.number


class _Heard(NamedTuple):
    answers: int  # from there
    elsewhere: int  # of all such requests
    at_s: float


class Exploration:
    """The time of the last news of each pool and class."""

    def __init__(self) -> None:
        self._heard: OrderedDict[ExploredKey, _Heard] = OrderedDict()

    def hopes(
        self, keys: Sequence[ExploredKey], options: tuple[RankedOption, ...], steps: Sequence[StepModel], now_s: float
    ) -> list[Hope]:
        """Returns the options of a decision, with their keys and their pools' step times, that are worse than they may
        be, and of which nothing was heard for long enough.
        """
        found = []
        factors = [model.factor(each.load.per_engine) for each, model in zip(options, steps, strict=True)]
        for number, (key, each, model) in enumerate(zip(keys, options, steps, strict=True)):
            share = min(factors) / factors[number]
            hoped = max(each.known.length, each.known.prior)
            # What it accepts, only such requests tell; how fast its steps are, all do.
            answers = each.known.answers if hoped > each.known.length else model.answers
            if (share < 1.0 or hoped > each.known.length) and self._is_due(key, each, answers, now_s):
                recovered = replace(each, load=each.load.faster(share), known=Acceptance(hoped))
                found.append(Hope(key, number, (*options[:number], recovered, *options[number + 1 :])))
        return found

    def begun(self, key: ExploredKey, elsewhere: int, now_s: float) -> None:
        """Tells that a request has gone there."""
        heard = self._heard.get(key)
        self._heard[key] = _Heard(heard.answers if heard else 0, elsewhere, now_s)

    def _is_due(self, key: ExploredKey, option: RankedOption, answers: int, now_s: float) -> bool:
        elsewhere = option.answers.answers
        heard = self._heard.get(key)
        if heard is None or heard.answers != answers:
            self._heard[key] = _Heard(answers, elsewhere, now_s)
            if len(self._heard) > _LARGEST:
                self._heard.popitem(last=False)
            return False
        return now_s - heard.at_s >= UNHEARD_S and elsewhere - heard.elsewhere >= UNHEARD_ANSWERS
