"""Request classes: the closed vocabulary of facts about a request, and conjunctions of them as bit masks."""

from collections.abc import Iterable

from policies.errors import PolicyError

# What the answer has to be. A request has at least one of these.
KINDS = (
    "plain",  # free text
    "tools_auto",  # tools offered, the model chooses
    "tools_forced",  # tool_choice required or a named function
    "json_object",  # response_format json_object
    "json_schema",  # response_format json_schema
    "structured",  # a structural tag, or vLLM's structured_outputs (regex, choice, grammar, ...)
    "guided",  # guided_json and its siblings, which vLLM no longer reads
)
# How it is asked for. Any number of these.
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
)
# Needed by advisories, of no interest to a reader: not among a request's published classes.
IMPLIED = ("loose",)  # tools, none of them strict
GROUPS = {
    "any": KINDS,
    "tools": ("tools_auto", "tools_forced"),
    "json": ("json_object", "json_schema"),
    "checked": tuple(kind for kind in KINDS if kind != "plain"),  # a right answer can be told from a broken one
}

BIT = {name: 1 << place for place, name in enumerate((*KINDS, *MODIFIERS, *IMPLIED))}
_PUBLISHED = (*KINDS, *MODIFIERS)
JUDGED = (*KINDS, "strict", "thinking")  # what an answer may break by; finer classes would be too few to judge
ALL_KINDS = sum(BIT[kind] for kind in KINDS)
CHECKED = ALL_KINDS - BIT["plain"]


def names_of(mask: int) -> tuple[str, ...]:
    """The published class names of a mask, in the vocabulary's order."""
    return tuple(name for name in _PUBLISHED if mask & BIT[name])


def class_of(mask: int) -> str:
    """The one request class under which the answer is counted and judged: `kind+kind+strict+thinking`."""
    return "+".join(name for name in JUDGED if mask & BIT[name])


def masks_of(expression: str) -> tuple[int, ...]:
    """Parse `name+name+...`, a conjunction; a group such as `tools` stands for any one of its members.

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
    """The masks of several alternatives, without repetition."""
    return tuple(sorted({mask for expression in expressions for mask in masks_of(expression)}))


def covers(masks: Iterable[int], request: int) -> bool:
    """Whether a statement about some classes speaks of the whole request: it matches and leaves out none of its kinds.

    A proof or a waiver for `tools_auto` must not vouch for the JSON schema that the same request also asks for.
    """
    hit = [mask for mask in masks if mask & request == mask]
    spoken = 0
    for mask in hit:
        spoken |= mask
    return bool(hit) and request & ALL_KINDS & ~spoken == 0
