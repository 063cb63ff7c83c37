"""The questions to an engine, and the findings in its answers. Pure: what can't be read is not known.

No question changes an engine, and no prompt of a user is among them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from policies.facts import TOLD, UNKNOWN, method_of, release_of, without_build
from policies.model_families import model_of, variant_of
from serve.parsing.families import find_grammar, grammars_by_markup

Confidence = Literal["certain", "stated", "likely", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact.

    Attributes:
        value: None where it is not known.
        confidence: `certain`: the engine says it, or its answers leave no other explanation. `stated`: the operator
            says it. `likely`: it behaves like that; shown, but nothing is trusted for it.
    """

    value: Any
    source: str
    confidence: Confidence


Findings = Mapping[str, Finding]

SETTINGS = (
    "kv_cache_dtype", "max_model_len", "structured_outputs_backend", "pipeline_parallel_size", "page_size",
    "enable_dp_attention", "enable_hierarchical_cache", "mamba_radix_cache_strategy", "kv_connector",
)  # fmt: skip


def shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what all of some mappings have alike; nothing if there are none."""
    first, *others = values or ({},)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a mapping within a mapping; empty if there is none."""
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}


def known(findings: Findings, name: str) -> Any:
    """Returns a fact's value if it may be relied on, else None."""
    finding = findings.get(name)
    return finding.value if finding is not None and finding.confidence in ("certain", "stated") else None


def is_same(name: str, stated: Any, found: Any) -> bool:
    """Returns whether a fact is what is stated."""
    said, told = (str(each).strip().lower() for each in (stated, found))
    return told == said or (name == "engine_version" and without_build(told) == without_build(said))


def facts_of(findings: Findings) -> dict[str, Any]:
    """Returns the `facts` of a pool with this engine: nothing but what may be relied on.

    What is missing counts as unknown, and so does the method unless it is known that there is none or which.
    """
    facts = {name: value for name in TOLD if (value := known(findings, name)) is not None}
    settings = {name: value for name in SETTINGS if (value := known(findings, name)) is not None}
    settings = {**(known(findings, "settings") or {}), **settings}
    facts["method"] = known(findings, "method") or "unknown"
    return {**facts, "settings": settings} if settings else facts


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """One URL and what was found there.

    Attributes:
        url: Base URL, without `/v1`.
        key_env: Environment variable with its key; None if it needs none.
        resolve: Each address that the host of the URL has is an engine like this one.
    """

    url: str
    key_env: str | None
    findings: Findings
    resolve: bool = False


_COUNTERS_SINCE = Version("0.10")  # before, vLLM had these counters under other names, whether it drafted or not
# SGLang's algorithms that leave no doubt: its EAGLE runs the model's own MTP layers as well.
_SGLANG_METHODS = {"NGRAM": "ngram", "EAGLE3": "eagle3", "STANDALONE": "draft_model", "DFLASH": "dflash"}
_TWINS = {"qwen3_coder": "qwen3_coder or qwen3_xml", "glm47": "glm45 or glm47"}  # parsers that read the same text
_MAX_TEXT = 512
_PRINTABLE = re.compile(r"[^\x20-\x7e\u00a0-\U0010ffff]")
# Prometheus text, read with tolerance: a line that is none is passed over.
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'\b([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')
_ENGINES_OWN = "vllm:cache_config_info"  # routers have series named `vllm:` as well, but no cache
_DRAFTS, _STARTED = "vllm:spec_decode_num_", "process_start_time_seconds"
_SGLANGS_SIZES = ("sglang:max_total_num_tokens", "sglang:hicache_host_total_tokens")
_READ = (_ENGINES_OWN, _DRAFTS, _STARTED, *_SGLANGS_SIZES)
_LONGEST_LINE = 64 * 1024
_MOST_TOKENS = 10**12  # that an engine can keep; more are a mistake


class Question(NamedTuple):
    """One request.

    Attributes:
        body: JSON; None for a GET.
    """

    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An engine's answer.

    Attributes:
        status: HTTP's; 0 if there was no answer.
        body: Up to a limit.
    """

    status: int
    body: bytes = b""
    error: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of a successful answer; empty for anything else."""
        if self.status != 200:
            return {}
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace") if self.status == 200 else ""


NO_ANSWER = EngineAnswer(0)
Answers = Mapping[str, EngineAnswer]

# Nothing of these generates a token.
PASSIVE: Mapping[str, Question] = {
    "models": Question("/v1/models"),
    "version": Question("/version"),
    "metrics": Question("/metrics"),
    "server_info": Question("/server_info?config_format=json"),
    "old_server_info": Question("/get_server_info"),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "A test.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    },
}
SAID, THOUGHT, OLD_THOUGHT, RESULT = "SAID1", "THOUGHT1", "THOUGHT2", "TOLD1"
# One whole call in each dialect. An engine that is forced to write one by a grammar shows which one its parser reads,
# whatever the model would have written.
DIALECTS: Mapping[str, str] = {
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": "b"}<|tool_call_end|><|tool_calls_section_end|>',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>",
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
    "glm47": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">b</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
}


def rendering(model: str) -> Question:
    """Returns the question for the tokens of a conversation with a call, its result and a thought before it."""
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": "C1"}'}}
    messages = [
        {"role": "user", "content": "ASKED1"},
        {
            "role": "assistant", "content": SAID, "reasoning": THOUGHT, "reasoning_content": OLD_THOUGHT,
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "functions.f:0", "content": RESULT},
    ]  # fmt: skip
    body = {"model": model, "messages": messages, "tools": [_TOOL], "add_generation_prompt": True}
    return Question("/tokenize", body)


def rendered(model: str, tokens: Sequence[int]) -> Question:
    """Returns the question for the text of a prompt's tokens."""
    return Question("/detokenize", {"model": model, "tokens": list(tokens)})


def min_p(model: str) -> Question:
    """Returns a request for one token that vLLM refuses while it speculates."""
    return _chat(model, max_tokens=1, min_p=0.01)


def forced(model: str, dialect: str) -> Question:
    """Returns a request whose answer must be a call in a dialect."""
    return _chat(
        model, max_tokens=400, tools=[_TOOL], tool_choice="auto",
        structured_outputs={"choice": [DIALECTS[dialect]]},
        chat_template_kwargs={"thinking": False, "enable_thinking": False},
    )  # fmt: skip


def _chat(model: str, **more: Any) -> Question:
    messages = [{"role": "user", "content": "x"}]
    return Question("/v1/chat/completions", {"model": model, "temperature": 0, "messages": messages, **more})


def read(answers: Answers) -> dict[str, Finding]:
    """Returns what an engine's answers tell, by the name of the fact. Questions that were not asked may be missing."""
    found: dict[str, Finding] = {}
    for name, value, source, confidence in _each(answers):
        if value is not None:
            found[name] = _agreed(name, found.get(name), Finding(_clean(value), source, confidence))
    return _with_method(_of_one_family(found))


Told = Iterator[tuple[str, Any, str, Confidence]]


def _each(answers: Answers) -> Told:
    yield from _of_models(answers)
    yield from _of_metrics(answers)
    info = _answer(answers, "server_info").document or _answer(answers, "old_server_info").document
    if isinstance(info.get("vllm_config"), Mapping):
        yield from _of_vllm(info["vllm_config"])
    elif "speculative_algorithm" in info:
        yield from _of_sglang(info)
    yield from _of_behaviour(answers)


def _answer(answers: Answers, name: str) -> Any:
    return answers.get(name, NO_ANSWER)


def _clean(value: Any) -> Any:
    """Returns a value that can be printed, whatever an engine has sent."""
    if isinstance(value, tuple):
        return tuple(map(_clean, value))
    return _PRINTABLE.sub("", value)[:_MAX_TEXT] if isinstance(value, str) else value


def _agreed(name: str, before: Finding | None, now: Finding) -> Finding:
    """Returns the surer of two findings; if both are sure and differ, neither counts.

    Where an engine behaves as if it drafts, nothing that it says makes that sure again.
    """
    if before is None:
        return now
    both = name == "speculates" or before.confidence == now.confidence == "certain"
    if both and before.value != now.value:
        return Finding(None, f"{before.source} says {before.value}, {now.source} says {now.value}", "unknown")
    return now if (before.confidence, now.confidence) == ("likely", "certain") else before


def _of_models(answers: Answers) -> Told:
    listed = _answer(answers, "models").document.get("data")
    models = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    base = [each for each in models if isinstance(each.get("id"), str) and not each.get("parent")]
    if not base:
        return
    where = "/v1/models"
    roots = {each.get("root") for each in base}
    owners = {each.get("owned_by") for each in base}
    yield "served_names", tuple(each["id"] for each in base), where, "certain"
    adapters = tuple(each["id"] for each in models if each.get("parent") and isinstance(each.get("id"), str))
    if adapters:
        yield "adapters", adapters, f"{where}: they have a parent", "certain"
    version = _answer(answers, "version").document.get("version")
    if len(roots) > 1:
        yield "several", len(roots), f"{where}: models with weights of their own, behind one URL", "certain"
        return
    root = roots.pop()
    if isinstance(root, str) and root:
        yield "root", root, where, "certain"
        yield from _of_name(root)
    if (length := _count(base[0].get("max_model_len"))) is None:
        return  # an engine tells how much its model reads; a router of vLLM's name has a version too, of its own
    yield "max_model_len", length, where, "certain"
    if owners == {"vllm"} and _version(version) is not None:
        yield "engine", "vllm", "/version, and /v1/models: owned_by", "certain"
        yield "engine_version", _release(version), "/version", "certain"


def _of_name(root: str) -> Told:
    """Yields what the name of the weights tells."""
    name = root.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-")
    if named := model_of(name):
        yield "family", named.family, f"the weights' name, {name}", "certain"
        if named.version and named.version not in named.family:
            yield "model_version", named.version, f"the weights' name, {name}", "certain"
    if (variant := variant_of(name)) != "none":
        yield "quantization", variant, f"the weights' name, {name}", "certain"


def _of_metrics(answers: Answers) -> Told:
    text = _answer(answers, "metrics").text
    metrics = engine_metrics(text)
    if metrics.drafts is None:
        return
    version = _version(_answer(answers, "version").document.get("version"))
    if metrics.drafts:
        yield "speculates", True, "/metrics: counters of drafts exist", "certain"
        if metrics.draft_length:
            yield "draft_length", metrics.draft_length, "/metrics: positions; it may be less at times", "certain"
    elif version is not None and version >= _COUNTERS_SINCE:
        yield "speculates", False, "/metrics: it has an engine's series, and no counters of drafts", "certain"
    cache = metrics.cache
    if (prefix := cache.get("enable_prefix_caching")) in ("True", "False"):
        yield "prefix_caching", prefix == "True", "/metrics: cache_config_info", "certain"
    if dtype := cache.get("cache_dtype"):
        yield "kv_cache_dtype", dtype, "/metrics: cache_config_info", "certain"


def _of_vllm(config: Mapping[str, Any]) -> Told:
    """Yields what vLLM tells in its developers' mode. The whole document may hold secrets, and is not kept."""
    where = "/server_info"
    if "speculative_config" in config:
        speculative = config["speculative_config"]
        yield "speculates", bool(speculative), where, "certain"
        if isinstance(speculative, Mapping):
            yield "method", method_of(str(speculative.get("method", ""))), where, "certain"
            yield "drafter", _text(speculative.get("model")), where, "certain"
            yield "num_speculative_tokens", _count(speculative.get("num_speculative_tokens")), where, "certain"
    scheduling = part(config, "scheduler_config").get("async_scheduling")
    yield "async_scheduling", scheduling if isinstance(scheduling, bool) else None, where, "certain"
    outputs = part(config, "structured_outputs_config")
    if "reasoning_parser" in outputs:
        yield "reasoning_parser", _text(outputs["reasoning_parser"]) or "none", where, "certain"
    yield "structured_outputs_backend", _text(outputs.get("backend")), where, "certain"
    stages = _count(part(config, "parallel_config").get("pipeline_parallel_size"))
    yield "pipeline_parallel_size", stages, where, "certain"


def _of_sglang(info: Mapping[str, Any]) -> Told:
    """Yields what SGLang tells: all its resolved arguments. The whole document may hold secrets, and is not kept."""
    where = "/server_info"
    yield "engine", "sglang", where, "certain"
    yield "engine_version", _release(info.get("version")), where, "certain"
    algorithm = info["speculative_algorithm"]
    yield "speculates", bool(algorithm), where, "certain"
    if algorithm:
        yield "method", _SGLANG_METHODS.get(str(algorithm).upper()), where, "certain"
        yield "drafter", _text(info.get("speculative_draft_model_path")), where, "certain"
        tokens = _count(info.get("speculative_num_draft_tokens"))  # with the one that is verified
        yield "num_speculative_tokens", tokens - 1 if tokens else None, where, "certain"
    yield "tool_parser", _text(info.get("tool_call_parser")) or "none", where, "certain"
    yield "reasoning_parser", _text(info.get("reasoning_parser")) or "none", where, "certain"
    if isinstance(disabled := info.get("disable_radix_cache"), bool):
        yield "prefix_caching", not disabled, where, "certain"
    if isinstance(disabled := info.get("disable_overlap_schedule"), bool):
        yield "async_scheduling", not disabled, where, "certain"
    for setting, value in _settings_of_sglang(info):
        yield setting, value, where, "certain"


def _settings_of_sglang(info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields settings that advisories name; None where an argument is not there, or is none of its kind."""
    for name in ("kv_cache_dtype", "mamba_radix_cache_strategy"):
        yield name, _text(info.get(name))
    yield "pipeline_parallel_size", _count(info.get("pp_size"))
    yield "page_size", _count(info.get("page_size"))
    hierarchical = info.get("enable_hierarchical_cache")
    yield "enable_hierarchical_cache", hierarchical if isinstance(hierarchical, bool) else None
    attention, switch = _count(info.get("attn_dp_size")), info.get("enable_dp_attention")  # 0.5.23 has the former
    yield "enable_dp_attention", attention > 1 if attention else switch if isinstance(switch, bool) else None
    role = _text(info.get("disaggregation_mode"))
    yield "kv_connector", "none" if role == "null" else role


def _of_behaviour(answers: Answers) -> Told:
    refusal = _answer(answers, "min_p")
    if refusal.status == 400 and b"speculative" in refusal.body:
        yield "speculates", True, "it refuses min_p as it speculates", "likely"
    prompt = _answer(answers, "rendered").document.get("prompt")
    if isinstance(prompt, str):
        yield from _of_template(prompt)
    read_by = [dialect for dialect in DIALECTS if _is_call(answers, dialect)]
    if len(read_by) == 1:
        source = f"it reads a call in the form of {read_by[0]}"
        yield "tool_parser", _TWINS.get(read_by[0], read_by[0]), source, "likely"
        yield "dialect", read_by[0], source, "likely"


def _of_template(prompt: str) -> Told:
    where = "/tokenize: the chat template"
    _, said, rest = prompt.partition(SAID)
    call, told, _ = rest.partition(RESULT)
    if said and told and (grammars := grammars_by_markup(call)):
        confidence: Confidence = "certain" if len(grammars) == 1 else "likely"  # some families write alike
        yield "grammar", grammars[0], f"{where} writes a past call so", confidence
    if THOUGHT in prompt:
        yield "reasoning_field", "reasoning", f"{where} shows it", "certain"
    elif OLD_THOUGHT in prompt:
        yield "reasoning_field", "reasoning_content", f"{where} shows it", "certain"
    end = prompt.rstrip()
    if end.endswith("<think>"):
        yield "thinking", True, f"{where} ends inside a thought", "certain"
    elif re.search(r"<think>\s*</think>$", end):
        yield "thinking", False, f"{where} ends after an empty thought", "certain"


def _is_call(answers: Answers, dialect: str) -> bool:
    """Returns whether an engine has read a call that it was forced to write."""
    choices = _answer(answers, f"forced:{dialect}").document.get("choices")
    try:
        (call,) = choices[0]["message"]["tool_calls"]
        return bool(call["function"]["name"] == "f")
    except (TypeError, KeyError, IndexError, ValueError):
        return False


def _of_one_family(found: dict[str, Finding]) -> dict[str, Finding]:
    """Takes the family away if the chat template writes calls as another family does: the weights' name is wrong."""
    root, grammar = found.get("root"), found.get("grammar")
    named = None if root is None else find_grammar([root.value], [], []).grammar
    if grammar is None or named is None or named == grammar.value:
        return found
    if grammar.confidence == "likely":
        return {**found, "grammar": Finding(named, f"the weights' name, and {grammar.source}", "certain")}
    source = f"the weights' name and the chat template, which writes {grammar.value}, contradict each other"
    return {**found, "family": Finding(None, source, "unknown")}


def _with_method(found: dict[str, Finding]) -> dict[str, Finding]:
    """Adds the method where none is needed, and takes away one that other answers contradict."""
    speculates = found.get("speculates")
    if speculates is None or speculates.confidence != "certain":
        return {name: finding for name, finding in found.items() if name != "method"}
    if not speculates.value:
        return {**found, "method": Finding("none", speculates.source, "certain")}
    if found.get("method", speculates).value == UNKNOWN:
        del found["method"]
    return found


def _version(text: Any) -> Version | None:
    try:
        return Version(text) if isinstance(text, str) and len(text) <= _MAX_TEXT else None
    except InvalidVersion:
        return None


def _release(text: Any) -> str | None:
    """Returns an engine's version as it writes it; None if that is none, which an operator may know better."""
    return text if isinstance(text, str) and release_of(text) is not None else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The process behind an engine's metrics, as far as they tell.

    Attributes:
        started: When its processes started; empty if they do not say.
        drafts: It has counters that exist only where there is a drafter; None if it tells nothing of itself.
        draft_length: The most tokens of a draft.
        kept_tokens: How many tokens of prompts it keeps. SGLang may tell later than the rest.
    """

    started: frozenset[float]
    drafts: bool | None
    draft_length: int | None
    cache: dict[str, str]
    kept_tokens: int | None = field(default=None, compare=False)


def engine_metrics(text: str) -> EngineMetrics:
    series = list(_series(text))
    started = frozenset(value for name, _, value in series if name == _STARTED)
    speculative = [labels for name, labels, _ in series if name.startswith(_DRAFTS)]
    places = {labels["position"] for labels in speculative if labels.get("position", "").isdecimal()}
    caches = [labels for name, labels, _ in series if name == _ENGINES_OWN]
    drafts = True if speculative else False if caches else None
    cache = shared(caches)
    kept_tokens = kept_by_vllm(cache, len(caches)) or _kept_by_sglang(series)
    return EngineMetrics(started, drafts, len(places) or None, cache, kept_tokens)


def _kept_by_sglang(series: Sequence[tuple[str, dict[str, str], float]]) -> int | None:
    sizes: dict[str, dict[str, float]] = {name: {} for name in _SGLANGS_SIZES}
    for name, labels, value in series:
        if name in sizes:  # each rank of tensor parallelism tells the same
            sizes[name][labels.get("dp_rank", "")] = value
    # What is on the GPU is in the host's memory as well.
    tokens = max(sum(by_rank.values()) for by_rank in sizes.values())
    return int(tokens) if 0 < tokens < _MOST_TOKENS else None


def kept_by_vllm(cache: Mapping[str, str], ranks: int) -> int | None:
    """Returns how many tokens of prompts vLLM keeps, by its `cache_config_info` and the ranks of data parallelism.

    It is None if unknown, as it is where vLLM keeps more outside the GPU: it tells the bytes of that, not the tokens.
    """
    if cache.get("kv_offloading_size", "None") != "None":
        return None
    own = _number(cache, "kv_cache_size_tokens") * ranks  # it tells those of one
    tokens = own or _number(cache, "num_gpu_blocks") * _number(cache, "block_size")  # of all
    return tokens if 0 < tokens < _MOST_TOKENS else None


def _number(labels: Mapping[str, str], name: str) -> int:
    return int(text) if (text := labels.get(name, "")).isdecimal() and len(text) < len(str(_MOST_TOKENS)) else 0


def _series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields name, labels and value of each line of metrics that somebody reads."""
    for line in text.splitlines():
        if not line.startswith(_READ) or len(line) > _LONGEST_LINE:
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if isfinite(value):  # nan would be another value each time
            yield match[1], dict(_LABEL.findall(match[2] or "")), value
