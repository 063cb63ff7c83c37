"""The model families: how each is recognised, which grammar reads it, and where its outputs start.

The one table behind `grammar: auto`, the switch for thinking, and the reading of leaked calls. Sources of the names:
the registries of vLLM 0.33 and SGLang 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

_OFF = (False, 0, "", "false", "none", "disabled", "no_think")


@dataclass(frozen=True, slots=True)
class Thinking:
    """The switch by which a request turns thinking on or off, and the place where an output starts.

    Attributes:
        switches: The arguments that the family's chat template reads, the first one first, and the values that mean on
            and off.
        any_on: One switch that is on outweighs another that is off; otherwise the first one given decides.
        default: The template's own choice where no switch is given.
        start: `switch`: an output starts inside reasoning if thinking is on. `always`: it does whatever the request
            says. `model`: the model writes the opening tag itself. `never`: it does not think. `channel`: it always
            thinks, and opens its channels itself.
        may_think: With no switch given the model decides for itself whether to think.
        efforts: By each effort of the API that the template does not know, the one that it does; None if it is to get
            none.
    """

    switches: Mapping[str, tuple[Any, Any]] = field(
        default_factory=lambda: {"enable_thinking": (True, False), "thinking": (True, False)}
    )
    any_on: bool = False
    default: bool = False
    start: Literal["switch", "always", "model", "never", "channel"] = "switch"
    may_think: bool = False
    efforts: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def switch(self) -> str | None:
        """The argument to set; None if the template has no switch."""
        return next(iter(self.switches), None)

    def said(self, arguments: Mapping[str, Any]) -> bool | None:
        """Returns what arguments of a chat template say; None if they leave it to the model or the template."""
        values = [_truth(arguments[name]) for name in self.switches if arguments.get(name) is not None]
        if self.any_on and True in values:
            return True
        return values[0] if values else None

    def thinks(self, arguments: Mapping[str, Any], default: bool | None = None) -> bool:
        """Returns whether the model is to think, or may, by the arguments of the chat template. The default is the
        pool's choice where they do not say; None for the template's own.
        """
        if self.start in ("always", "channel"):
            return True
        said = self.said(arguments) if arguments else None  # as most requests have none
        if said is None and self.may_think:
            return default is not False
        return (self.default if default is None else default) if said is None else said

    def starts_inside(self, arguments: Mapping[str, Any], default: bool | None = None) -> bool:
        """Returns whether an output starts inside reasoning, its opening tag in the prompt; see `thinks`."""
        if self.start != "switch":
            return self.start == "always"
        said = self.said(arguments)
        return (self.default if default is None else default) if said is None else said


def _truth(value: Any) -> bool | None:
    """Returns what the value of a switch says; None for one that leaves it to the model."""
    if isinstance(value, str) and value.lower() in ("adaptive", "auto"):
        return None
    return value not in _OFF and not (isinstance(value, str) and value.lower() in _OFF)


_BOOLEAN = (True, False)
USUAL = Thinking()
"""Of a family that nobody knows: the switches of most templates."""
_BOTH = {"enable_thinking": _BOOLEAN, "thinking": _BOOLEAN}
_KIMI = {"thinking": _BOOLEAN, "enable_thinking": _BOOLEAN}
_ALWAYS = Thinking({}, default=True, start="always")


@dataclass(frozen=True)
class Family:
    """One family of models, as far as their text is concerned.

    Attributes:
        grammar: One of `GRAMMARS`, which is its name here.
        models: Matches the last part of a model's name, whatever its case.
        architectures: Of the model's `config.json`. Families may share one.
        parsers: The engines' own names of parsers that read the family's calls; vLLM's and SGLang's. Families may share
            one.
        leak: Matches how a leaked call of the family begins.
        thinking: Its switch.
    """

    grammar: str
    models: str
    architectures: frozenset[str]
    parsers: frozenset[str]
    leak: str
    thinking: Thinking

    @cached_property
    def _models(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![a-z0-9])(?:{self.models})(?![a-z0-9]|\.[0-9])", re.IGNORECASE)

    @cached_property
    def _leak(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?:{self.leak})")

    def is_called(self, name: str) -> bool:
        """Returns whether a model of this name is of the family."""
        return self._models.search(name.replace("_", "-")) is not None

    def is_read_by(self, parser: str) -> bool:
        """Returns whether an engine's parser of this name reads the family's calls, ours among them."""
        return parser in self.parsers or parser == f"{OUR_PARSER}{self.grammar}"

    def begins(self, leak: str) -> bool:
        """Returns whether a leak begins as a call of the family does."""
        return self._leak.match(leak) is not None


def _family(grammar: str, models: str, architectures: str, parsers: str, leak: str, thinking: Thinking) -> Family:
    return Family(grammar, models, frozenset(architectures.split()), frozenset(parsers.split()), leak, thinking)


# How a block of `<tool_call>` goes on. GLM writes a bare name, all others an object or a tag.
_GLM_BLOCK = r"<tool_call>\s*[^\s<{]+\s*(?:<arg_key>|</tool_call>|\{)|<arg_key>"
_QWEN_BLOCK = r"<tool_call>\s*(?:<function|(?:```\w*\s*|\[\s*)?\{)|<function"  # reads the object of hermes, too
_DSML_BARS = r"</?\s?(?:[｜|]{1,2}|‖)\s?DSML\s?(?:[｜|]{1,2}|‖)(?:r:)?"
_V3_CALL = r"<[｜|]tool[▁_]calls?[▁_]begin[｜|]>"
_HUNYUAN = Thinking(
    {"reasoning_effort": ("high", "no_think")},
    efforts={"none": "no_think", "minimal": "low", "medium": "high", "xhigh": "high", "max": "high"},
)
_DEEPSEEK_OFF = Thinking(_KIMI, any_on=True)

FAMILIES: tuple[Family, ...] = (
    _family(
        "kimi_k2", r"kimi-?(?:k2|linear)(?:[.-].*)?",
        "DeepseekV3ForCausalLM KimiK2ForCausalLM KimiK25ForConditionalGeneration KimiLinearForCausalLM", "kimi_k2",
        r"<\|tool_calls?_(?!start)", Thinking(_KIMI),
    ),
    _family(
        "kimi_k3", r"kimi-?k3(?:[.-].*)?", "KimiK3ForConditionalGeneration", "kimi_k3",
        r"<\|\s?open\s?\|>",
        Thinking(_KIMI, default=True, efforts={"none": None, "minimal": "low", "medium": "high", "xhigh": "max"}),
    ),
    _family(
        "qwen3_coder", r"qwen-?3-coder(?:-.*)?|qwen-?3\.[5-9](?:-.*)?",
        "Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM Qwen3_5ForConditionalGeneration "
        "Qwen3_5MoeForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
        "qwen3_coder qwen3_xml", _QWEN_BLOCK, Thinking(_BOTH),
    ),
    _family(
        "hermes", r"qwen-?2(?:\.5)?(?:-.*)?|qwen-?3(?!-coder|\.)(?:-.*)?|qwq(?:-.*)?|hermes(?:-.*)?"
        r"|granite-?4(?:[.-].*)?",
        "Qwen2ForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM GraniteMoeHybridForCausalLM",
        "hermes qwen qwen25 qwen3_json granite4", r"<tool_call>\s*(?:```\w*\s*)?\{", Thinking(_BOTH),
    ),
    _family(
        "glm47", r"glm-?(?:4\.[5-9]|5)(?:[.-].*)?",
        "Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM", "glm45 glm47",
        _GLM_BLOCK, Thinking(_BOTH, any_on=True, default=True),
    ),
    _family(
        "ling3", r"ling-?3(?:[.-].*)?", "BailingMoeV3ForCausalLM", "ling3",
        _GLM_BLOCK, Thinking(_BOTH, any_on=True, default=True),
    ),
    _family(
        "laguna", r"laguna-?(?:xs|m)(?:[.-].*)?", "LagunaForCausalLM", "poolside_v1", _GLM_BLOCK,
        Thinking({"enable_thinking": _BOOLEAN}),
    ),
    _family(
        "laguna_s", r"laguna-?s(?:[.-].*)?", "LagunaForCausalLM", "poolside_v1", _GLM_BLOCK,
        Thinking({"enable_thinking": _BOOLEAN}, default=True),
    ),
    _family(
        "longcat", r"longcat(?:-.*)?", "LongcatFlashForCausalLM LongcatFlashNgramForCausalLM", "longcat",
        r"</?longcat_", Thinking({"enable_thinking": _BOOLEAN}),
    ),
    _family(
        "hy_v3", r"hy-?3(?:[.-].*)?|hunyuan-?3(?:[.-].*)?", "HYV3ForCausalLM", "hy_v3 hunyuan",
        r"<tool_calls?(?::\w+)?>\s*(?:<tool_call(?::\w+)?>)?[^<{]*<tool_sep|<tool_calls?:\w+>",
        _HUNYUAN,
    ),
    _family(
        "hy_v4", r"hy-?4(?:[.-].*)?", "HYV4ForCausalLM", "hy_v4", r"<tool_calls?:\w+>",
        _HUNYUAN,
    ),
    _family(
        "deepseek_v3", r"deepseek-?v3(?:-(?:0324|base).*)?|deepseek-?r1(?!-distill)(?:-.*)?", "DeepseekV3ForCausalLM",
        "deepseek_v3 deepseekv3", rf"{_V3_CALL}\s*(?:{_V3_CALL})?\s*function<[｜|]tool[▁_]sep", _DEEPSEEK_OFF,
    ),
    _family(
        "deepseek_v31", r"deepseek-?v3\.1(?:-.*)?", "DeepseekV3ForCausalLM", "deepseek_v31 deepseekv31",
        _V3_CALL, _DEEPSEEK_OFF,
    ),
    _family(
        "deepseek_v32", r"deepseek-?v3\.2(?!-exp)(?:-.*)?", "DeepseekV32ForCausalLM", "deepseek_v32 deepseekv32",
        rf"{_DSML_BARS}(?:function_calls|invoke)", _DEEPSEEK_OFF,
    ),
    _family(
        "deepseek_v4", r"deepseek-?v4(?!\.)(?:-.*)?", "DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration",
        "deepseek_v4 deepseekv4", rf"{_DSML_BARS}(?:tool|invoke)", Thinking(_KIMI, any_on=True, default=True),
    ),
    _family(
        "deepseek_v41", r"deepseek-?v4\.1(?:-.*)?", "DeepseekV41ForCausalLM", "deepseek_v41 deepseekv41",
        rf"{_DSML_BARS} ", Thinking(_KIMI, any_on=True, default=True),
    ),
    _family(
        "minimax_m2", r"minimax-?m2(?:[.-].*)?", "MiniMaxM2ForCausalLM", "minimax_m2 minimax-m2",
        r"<minimax:tool_call>|<invoke name=", _ALWAYS,
    ),
    _family(
        "minimax_m3", r"minimax-?m3(?:[.-].*)?",
        "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration", "minimax_m3 minimax-m3",
        r"\]?<\]minimax\[>\[", Thinking({"thinking_mode": ("enabled", "disabled")}, may_think=True),
    ),
    _family(
        "harmony", r"gpt-?oss(?:-.*)?", "GptOssForCausalLM", "openai openai_gptoss gpt-oss",
        r"<\|(?:channel|start|constrain|message)\|>", Thinking({}, default=True, start="channel"),
    ),
    _family(
        "step3p5", r"step-?3\.[57](?:-.*)?", "Step3p5ForCausalLM", "step3p5", _QWEN_BLOCK, _ALWAYS,
    ),
    _family("step5", r"step-?5(?:[.-].*)?", "Step5ForCausalLM", "step5", _QWEN_BLOCK, _ALWAYS),
    _family(
        "mimo", r"mimo-?v2(?:[.-].*)?", "MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM", "mimo",
        _QWEN_BLOCK, Thinking({"enable_thinking": _BOOLEAN}, default=True, start="model"),
    ),
    _family(
        "nemotron_v3", r"(?:nvidia-)?nemotron-?3(?:[.-].*)?", "NemotronHForCausalLM",
        "qwen3_xml qwen3_coder nemotron_v3 nemotron_3", _QWEN_BLOCK,
        Thinking({"enable_thinking": _BOOLEAN}, default=True),
    ),
    _family(
        "seed_oss", r"seed-?oss(?:-.*)?", "SeedOssForCausalLM", "seed_oss", r"<seed:tool_call>",
        Thinking({"thinking_budget": (-1, 0)}, default=True, start="always"),
    ),
    _family(
        "mistral", r"(?:mini|mi|dev|magi)stral(?:-.*)?",
        "MistralForCausalLM Mistral3ForConditionalGeneration MistralLarge3ForCausalLM Ministral3ForCausalLM", "mistral",
        r"\[TOOL_CALLS\]", Thinking({}, start="model", may_think=True),
    ),
    _family(
        "gemma4", r"gemma-?4(?:-.*)?", "Gemma4ForConditionalGeneration Gemma4ForCausalLM", "gemma4",
        r"<\|tool_call>", Thinking({"enable_thinking": _BOOLEAN}, start="model"),
    ),
    _family(
        "cohere_command3", r"command-(?:r7b|a-(?:03-2025|reasoning|translate))(?:-.*)?", "Cohere2ForCausalLM",
        "cohere_command3", r"<\|START_ACTION\|>", Thinking({"reasoning": _BOOLEAN}, start="model", may_think=True),
    ),
    _family(
        "cohere_command4", r"command-a-(?:plus|vision)(?:-.*)?|north-(?:mini-)?code(?:-.*)?",
        "Cohere2MoeForCausalLM Cohere2VisionForConditionalGeneration", "cohere_command4", r"<\|START_ACTION\|>",
        Thinking({"reasoning": _BOOLEAN, "reasoning_effort": ("high", "none")}, default=True),
    ),
    _family(
        "bare", r"(?<!.)(?:meta-)?llama-?(?:3\.[1-3]-\d+b|4)(?:-.*)?|lfm-?2(?:[.-].*)?|olmo-?3(?!.*think)(?:[.-].*)?"
        r"|granite-?3(?:[.-].*)?|phi-?4-mini(?:-.*)?|xlam(?:-.*)?|jamba(?:-.*)?",
        "Llama4ForConditionalGeneration MllamaForConditionalGeneration Lfm2ForCausalLM Lfm2MoeForCausalLM "
        "GraniteForCausalLM GraniteMoeForCausalLM",
        "llama3_json llama4_json llama3 llama4_pythonic pythonic lfm2 olmo3 granite phi4_mini_json xlam jamba",
        r"<\|python_(?:tag|start)\|>|<\|tool_call_start\|>|<\|tool_call\|>|functools\["
        r"|<function_calls>\s*[\w.\-]+\(|<tool_calls>\s*\[",
        Thinking({}, start="model", may_think=True),
    ),
)  # fmt: skip
_BY_GRAMMAR = {family.grammar: family for family in FAMILIES}
OUR_PARSER = "specgate_"
"""The beginning of our parsers' names inside vLLM; the grammar follows."""


class Found(NamedTuple):
    """The grammar that evidence names.

    Attributes:
        grammar: None if the evidence names none or contradicts itself.
        why: In words, for an operator.
    """

    grammar: str | None
    why: str


def find_grammar(names: Iterable[str], parsers: Iterable[str], architectures: Iterable[str]) -> Found:
    """Returns the grammar of a model by what is known of it.

    An architecture alone tells neither Kimi K2, DeepSeek V3 and V3.1 apart nor Qwen3 and Qwen3-Coder, and a name may be
    anybody's. So all evidence that says something must leave exactly one grammar.

    Args:
        names: Of the model: ids, folders, or what the configuration calls it.
        parsers: Names of tool-call parsers that its engines use.
        architectures: From its `config.json`.
    """
    kinds = {
        "the name": _evidence((name.rstrip("/").rsplit("/", 1)[-1] for name in names), Family.is_called),
        "the engine's tool-call parser": _evidence(parsers, Family.is_read_by),
        "the architecture": _evidence(architectures, lambda family, name: name in family.architectures),
    }
    evidence = [(kind, value, grammars) for kind, found in kinds.items() for value, grammars in found]
    if not evidence:
        return Found(None, "neither its name, nor an engine's tool-call parser, nor its architecture is known")
    left = frozenset.intersection(*(grammars for _, _, grammars in evidence))
    if len(left) == 1:
        return Found(next(iter(left)), f"by {' and '.join(dict.fromkeys(kind for kind, _, _ in evidence))}")
    said = "; ".join(f"{kind} {value!r} says {' or '.join(sorted(grammars))}" for kind, value, grammars in evidence)
    return Found(None, f"{said}: {'more than one is left' if left else 'these contradict each other'}")


def _evidence(said: Iterable[str], fits: Callable[[Family, str], bool]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yields each thing that is said, with the grammars of the families that it fits, if it fits any."""
    for each in dict.fromkeys(said):
        if grammars := frozenset(family.grammar for family in FAMILIES if fits(family, each)):
            yield each, grammars


def thinking_of(grammar: str | None) -> Thinking:
    """Returns what makes models of a grammar think; the usual way for one that is not known."""
    family = _BY_GRAMMAR.get(grammar or "")
    return USUAL if family is None else family.thinking


def grammars_by_markup(leak: str) -> list[str]:
    """Returns the grammars whose calls begin as a leak does, in the table's order."""
    return [family.grammar for family in FAMILIES if family.begins(leak)]
