"""Compares the tokens of an engine that drafts with those of one that does not, and tells ties from faults.

At a temperature of 0 both write the likeliest token each time, so that their answers are the same but where two tokens
are nearly equally likely: a batch of another size rounds differently. Whoever writes a token there that the other one
holds to be unlikely is wrong.
"""

from itertools import zip_longest
from typing import NamedTuple

from lab.probe.trace import Trace

# Natural logarithms. Numeric noise between two engines is a fraction of 1.
_TIE = 1.0
_SAME_NUMBER = 1.0


class Departure(NamedTuple):
    """The place where two answers part, and which of the engines was right there.

    Attributes:
        kind: `none`: the same tokens. `tie`: they part where either token was right. `wrong`: they part where only the
            standard engine's was. `unknown`: the engines don't tell enough.
        why: In words.
    """

    kind: str
    why: str = ""


def departure(ours: Trace, standard: Trace, *, may_end: bool) -> Departure:
    """Compares the tokens of two greedy answers to the same prompt.

    Args:
        ours: Of the engine that drafts.
        standard: Of the other one, with the likeliest tokens in each place, named by their ids.
        may_end: One may end before the other: at a stop string or a length limit, drafts that were accepted with the
            last token are told by some engines and not by others.
    """
    if not ours.ids or not standard.ids:
        return Departure("unknown", "the engines do not tell the ids of tokens")
    pairs = enumerate(zip_longest(ours.ids, standard.ids))
    place, own, theirs = next(((at, *pair) for at, pair in pairs if pair[0] != pair[1]), (-1, None, None))
    if place < 0 or (may_end and None in (own, theirs)):
        return Departure("none")
    if own is None or theirs is None:
        which = "ends" if own is None else "goes on"
        return Departure("wrong", f"token {place}: {which} where the standard engine does not")
    if len(standard.tops) != len(standard.ids) or not standard.tops[place]:
        return Departure("unknown", f"token {place} differs, and the standard engine tells no log-probabilities")
    tops, best = standard.tops[place], standard.logprobs[place]
    given = tops.get(f"token_id:{own}")
    least = min(tops.values()) if given is None else given  # what is not among the likeliest is at most that likely
    if best - least > _TIE:
        how = f"{least:.2f}" if given is not None else f"less than {least:.2f}"
        return Departure("wrong", f"token {place}: {own}, which has {how}, in place of {theirs}, which has {best:.2f}")
    return Departure("tie" if given is not None else "unknown", f"token {place} may be a tie")


def wrong_number(ours: Trace, standard: Trace) -> str:
    """Returns where two engines give the same token quite different log-probabilities; empty if nowhere."""
    rows = zip(ours.ids, standard.ids, ours.logprobs, standard.logprobs, strict=False)
    for place, (own, theirs, number, right) in enumerate(rows):
        if own != theirs:
            return ""  # what follows has another prompt
        if abs(number - right) > _SAME_NUMBER:
            return f"token {place}: log-probability {number:.2f} in place of {right:.2f}"
    return ""
