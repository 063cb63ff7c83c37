"""Request classes: the closed vocabulary of facts about a request, and conjunctions of them as bit masks."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import product

from policies.errors import PolicyError

# Kinds of answer. A request has at least one.
KINDS = (
    "plain",  # free text
    "tools_auto",  # tools offered, the model chooses
    "tools_forced",  # tool_choice required or a named function
    "json_object",  # response_format json_object
    "json_schema",  # response_format json_schema
    "structured",  # a structural tag, or vLLM's structured_outputs (regex, choice, grammar, ...)
    "guided",  # guided_json and its siblings, which vLLM no longer reads
)
# Modifiers of the request. Any number.
MODIFIERS = (
    "strict",  # a strict tool or a strict JSON schema
    "grammar",  # decoding is constrained by a grammar at some point
    "thinking",  # the model thinks before it answers
    "hidden_thinking",  # include_reasoning: false
    "stream",
    "stop",  # stop strings
    "single",  # parallel_tool_calls: false
    "history",  # the conversation already holds tool calls: an agent's loop
    "logprobs",
    "many",  # n > 1
    "unspeculable",  # sampling that vLLM refuses on an engine that speculates: min_p, logit_bias
    "penalties",  # frequency, presence or repetition penalty
    "prompt_logprobs",
    "images",  # images or video among the messages
    "thinking_budget",  # thinking_token_budget: a bound on the tokens of thinking
    "near_end",  # prompt and answer may fill the model's context
)
# Needed by advisories but of no interest to readers: not among a request's published classes.
IMPLIED = (
    "loose",  # tools, none of them strict
    "whole",  # not streamed
)
GROUPS = {
    "any": KINDS,
    "tools": ("tools_auto", "tools_forced"),
    "json": ("json_object", "json_schema"),
    "checked": tuple(kind for kind in KINDS if kind != "plain"),  # a broken answer can be recognised
}
# The guard checks answers to such requests; only there can a broken one be told from a good one.
GUARDED = frozenset((*GROUPS["tools"], *GROUPS["json"]))

BIT = {name: 1 << place for place, name in enumerate((*KINDS, *MODIFIERS, *IMPLIED))}
_PUBLISHED = (*KINDS, *MODIFIERS)
JUDGED = (*KINDS, "strict", "thinking")  # finer classes would have too few answers to test
ALL_KINDS = sum(BIT[kind] for kind in KINDS)
CHECKED = ALL_KINDS - BIT["plain"]
NUMBERS = BIT["logprobs"] | BIT["prompt_logprobs"]  # right or wrong, and nobody checks them


@lru_cache(maxsize=1)
def copying_classes() -> tuple[str, ...]:
    """Returns the classes, as cells name them, whose answers copy names of the prompt into calls or JSON."""
    choices = product(
        *([0, *(BIT[name] for name in GROUPS[group])] for group in ("tools", "json")),
        *([0, BIT[name]] for name in ("strict", "thinking")),
    )
    return tuple(class_of(sum(bits)) for bits in choices if any(bits[:2]))


def names_of(mask: int) -> tuple[str, ...]:
    """Returns the published class names of a mask, in the vocabulary's order."""
    return tuple(name for name in _PUBLISHED if mask & BIT[name])


@lru_cache(maxsize=1024)
def class_of(mask: int) -> str:
    """Returns the single class under which the answer is counted and checked: `kind+kind+strict+thinking`."""
    return "+".join(name for name in JUDGED if mask & BIT[name])


@lru_cache(maxsize=1024)
def class_of_names(names: tuple[str, ...]) -> tuple[str, int]:
    """Returns what `class_of` does, and the mask, by the names that `names_of` returns."""
    mask = sum(BIT[name] for name in names)
    return class_of(mask), mask


def masks_of(expression: str) -> tuple[int, ...]:
    """Parses `name+name+...`, a conjunction; a group such as `tools` stands for any one of its members.

    Raises:
        PolicyError: A name is not in the vocabulary.
    """
    masks = [0]
    for name in expression.split("+"):
        if name not in BIT and name not in GROUPS:
            raise PolicyError(f"unknown request class {name!r} in {expression!r}; known: {', '.join((*BIT, *GROUPS))}")
        masks = [mask | BIT[member] for mask in masks for member in GROUPS.get(name, (name,))]
    return tuple(masks)


def masks_of_all(expressions: Iterable[str]) -> tuple[int, ...]:
    """Returns the masks of several alternatives, without duplicates.

    Raises:
        PolicyError: A name is not in the vocabulary.
    """
    return tuple(sorted({mask for expression in expressions for mask in masks_of(expression)}))


def covers(masks: Iterable[int], request: int, named: int = 0) -> bool:
    """Returns True if a statement about some classes covers the whole request: it matches and omits none of its kinds.

    A proof or a waiver for `tools_auto` must not vouch for the JSON schema that the same request also asks for. It must
    name the classes of `named` as well.
    """
    matching = [mask for mask in masks if mask & request == mask]
    covered = 0
    for mask in matching:
        covered |= mask
    return bool(matching) and (request & ALL_KINDS | named) & ~covered == 0
