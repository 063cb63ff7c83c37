"""Request classes: a closed vocabulary, conjunctions of it as bit masks, and the facts of a request that make them."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

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


# Reading a global is faster than a dictionary lookup, and these are read on every request.
_PLAIN, _TOOLS_AUTO, _TOOLS_FORCED, _GUIDED = (BIT[n] for n in ("plain", "tools_auto", "tools_forced", "guided"))
_STRUCTURED = BIT["structured"] | BIT["grammar"]
_STRICT, _GRAMMAR, _THINKING, _HIDDEN_THINKING = (BIT[n] for n in ("strict", "grammar", "thinking", "hidden_thinking"))
_STREAM, _STOP, _SINGLE, _HISTORY = (BIT[n] for n in ("stream", "stop", "single", "history"))
_LOGPROBS, _MANY, _LOOSE, _WHOLE = BIT["logprobs"], BIT["many"], BIT["loose"], BIT["whole"]
_UNSPECULABLE, _PENALTIES = BIT["unspeculable"], BIT["penalties"]
_PROMPT_LOGPROBS, _IMAGES = BIT["prompt_logprobs"], BIT["images"]
_THINKING_BUDGET, _NEAR_END = BIT["thinking_budget"], BIT["near_end"]

_FORCED = frozenset({"required", "named"})
_BITS_OF_FORMAT = {
    "json_object": BIT["json_object"] | _GRAMMAR,
    "json_schema": BIT["json_schema"] | _GRAMMAR,
    "structural_tag": _STRUCTURED,
}


# What a request of a class says; of the classes that are not here, each is a field of its name.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "tools_auto": {"tools": 1, "tool_choice": "auto"},
    "tools_forced": {"tools": 1, "tool_choice": "required"},
    "json_object": {"response_format": "json_object"},
    "json_schema": {"response_format": "json_schema"},
    "structured": {"structured_outputs": True},
    "strict": {"strict_tools": True, "strict_schema": True},
    "hidden_thinking": {"include_reasoning": False},
    "single": {"parallel_tool_calls": False},
    "history": {"tool_history": True},
    "many": {"n": 2},
    "grammar": {},
    "loose": {},
    "whole": {},
}
_KIND_WITH = {"grammar": "json_object", "strict": "tools_auto", "loose": "tools_auto", "single": "tools_auto"}


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


def matches(masks: Iterable[int], request: int) -> bool:
    """Returns True if a statement about some classes is about a request."""
    return any(required & request == required for required in masks)


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


# A tuple: one is made for every request, and a frozen dataclass of so many fields costs two microseconds more.
class RequestFeatures(NamedTuple):
    """Facts about one request; `serve.request.features` extracts them from a body.

    Attributes:
        model: The model's name, as the caller wrote it; after `of_model`, as the configuration does.
        tool_choice: `auto`, `required`, `named`, `none`, or None without tools.
        strict_tools: At least one tool says `strict: true`.
        strict_schema: The JSON schema of `response_format` says `strict: true`.
        response_format: `json_object`, `json_schema`, `structural_tag`, or None for text.
        guided: A `guided_*` field is set, which vLLM accepts and ignores.
        thinking: The model thinks: by the request, else by the model's default.
        unspeculable: It asks for sampling that vLLM refuses on every engine that speculates, `min_p` or `logit_bias`.
        penalties: A frequency, presence or repetition penalty is in force.
        near_end: Prompt and answer together may fill the model's context.
        tool_history: The conversation already holds tool calls or their results.
        conversation_key: The same for each turn of a conversation; empty if unknown.
        preference: The caller's `enable_speculative`; None leaves it to the policy.
    """

    model: str
    stream: bool = False
    tools: int = 0
    tool_choice: str | None = None
    strict_tools: bool = False
    strict_schema: bool = False
    response_format: str | None = None
    structured_outputs: bool = False
    guided: bool = False
    thinking: bool = False
    include_reasoning: bool = True
    stop: bool = False
    logprobs: bool = False
    n: int = 1
    parallel_tool_calls: bool = True
    unspeculable: bool = False
    penalties: bool = False
    prompt_logprobs: bool = False
    images: bool = False
    thinking_budget: bool = False
    near_end: bool = False
    tool_history: bool = False
    conversation_key: str = ""
    preference: bool | None = None

    @property
    def mask(self) -> int:
        """The request's classes as bits; see `policies.classes`."""
        return _mask_of(self[_KIND])

    def _mask(self) -> int:
        mask = _BITS_OF_FORMAT.get(self.response_format, 0) if self.response_format else 0
        if self.tools and self.tool_choice != "none":
            mask |= self._tool_bits()
        if self.structured_outputs:
            mask |= _STRUCTURED
        if self.guided:
            mask |= _GUIDED
        if self.strict_schema and self.response_format == "json_schema":
            mask |= _STRICT
        return (mask or _PLAIN) | self._modifier_bits()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the request's classes, in a fixed order."""
        return names_of(self.mask)

    @property
    def request_class(self) -> str:
        """The single class under which the answer is counted and checked."""
        return class_of(self.mask)

    @classmethod
    def of_classes(cls, model: str, classes: Iterable[str]) -> "RequestFeatures":
        """Returns a request of some classes, and of as few others as can be.

        Args:
            model: Its model.
            classes: Names of the vocabulary that do not contradict one another.
        """
        names = [*classes]
        fields = {key: value for name in names for key, value in _FIELDS.get(name, {name: True}).items()}
        for name in names:
            if not cls(model, **fields).mask & BIT[name]:
                fields |= _FIELDS[_KIND_WITH[name]]
        return cls(model, **fields)

    def of_model(self, model: str) -> "RequestFeatures":
        """Returns the same request under the configuration's own name of the model: an alias resolved."""
        return self if model == self.model else self._replace(model=model)

    def _tool_bits(self) -> int:
        forced = self.tool_choice in _FORCED
        mask = _TOOLS_FORCED if forced else _TOOLS_AUTO
        mask |= _STRICT if self.strict_tools else _LOOSE
        if not self.parallel_tool_calls:
            mask |= _SINGLE
        # vLLM constrains a free choice of tools only for strict tools or a single call.
        return mask | _GRAMMAR if forced or self.strict_tools or not self.parallel_tool_calls else mask

    def _modifier_bits(self) -> int:
        return (
            (_THINKING if self.thinking else 0)
            | (0 if self.include_reasoning else _HIDDEN_THINKING)
            | (_STREAM if self.stream else _WHOLE)
            | (_STOP if self.stop else 0)
            | (_HISTORY if self.tool_history else 0)
            | (_LOGPROBS if self.logprobs else 0)
            | (_MANY if self.n > 1 else 0)
            | (_UNSPECULABLE if self.unspeculable else 0)
            | (_PENALTIES if self.penalties else 0)
            | (_PROMPT_LOGPROBS if self.prompt_logprobs else 0)
            | (_IMAGES if self.images else 0)
            | (_THINKING_BUDGET if self.thinking_budget else 0)
            | (_NEAR_END if self.near_end else 0)
        )


_KIND = slice(1, RequestFeatures._fields.index("conversation_key"))  # what does not say whose request it is


@lru_cache(maxsize=4096)
def _mask_of(kind: tuple[object, ...]) -> int:
    """Returns the classes of a request of some kind: few kinds are asked for, and to look them up takes a third."""
    return RequestFeatures("", *kind)._mask()  # type: ignore[arg-type]
