"""What is wrong with a valid configuration, found in a second: an engine would tell it after minutes, or never.

Facts that contradict each other, options that vLLM lacks, folders that are not there, steps that no CUDA graph covers,
and replicas with more requests, or fewer, than their engines have seats. Each finding names its model and pool.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from policies import PoolFacts
from policies.facts import UNKNOWN, method_of
from policies.model_families import short_name, variant_of
from policies.vllm_options import KNOWN, full_names
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig, PoolConfig

# Trained for something else than the name says: drafter -> the model's version, and what is known.
_MISNAMED = {
    "kimi-k2.5-thinking-eagle3": (
        "2",
        "works with Kimi-K2-Thinking (text only, version 2) and not with the multimodal K2.5 (field report R1)",
    )
}
_PLAIN = re.compile(r"\d(\.\d)?")
_VERSION = re.compile(r"(kimi-?k|qwen-?|glm-?|deepseek-?v)(\d)(?:\.?(\d)(?!\d))?(?![\dbm])", re.IGNORECASE)
_SO = "so the wrong advisories decide, and tool calls or JSON may break unseen"
_ROOT = Path(__file__).parents[2]  # paths into a checkout are relative to it, wherever a replica works
# Where vLLM declares its options; a newer one has some that our table lacks.
_SOURCES = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/*/cli_args.py", "config/*.py")
_LARGEST = 512  # vLLM's default, in tokens; Blackwell has 1,024
_LATENT = ("kimi-k2", "kimi-k3", "deepseek-", "glm-5")  # families with MLA, whose backends fall back from full graphs
_PRICE = "one request that opts out makes the steps of its whole batch 1.3 to 3 times as long (ADR 0094)"


def contradictions(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what contradicts what, what will break and what to do)."""
    for name, model, pool_name, pool in config.each_pool():
        known = config.facts_of(name, pool_name)
        for text in (wrong_pair(known), *_names(model, pool_name, pool, known), *_shared(model, pool_name, pool)):
            if text:
                yield name, pool_name, text


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
    return (
        f"the drafter {drafter} was trained for {trained_for} and drafts for {drafts_for}: such pairs have cut "
        f"tool-call arguments; use the drafter of {drafts_for}, or, if the model is {trained_for}, correct `family` "
        "and `version`"
    )


def _names(model: ModelConfig, pool_name: str, pool: PoolConfig, facts: PoolFacts) -> Iterator[str]:
    """Yields each contradiction between the facts and the names of a pool's weights.

    A fact that is stated for the very pool outweighs a name: weights do lie in folders of other models' names.
    """
    names = {"served_name": pool.served_name}
    if pool.kind == "vllm":
        names["the engine's model"] = model.engine_args_of(pool_name).get("model")
    for what, path in names.items():
        name = short_name(str(path or ""))
        named, known = _of(name, None), _of(facts.family or "", facts.model_version)
        if named and known and "model_version" not in pool.facts and not _agree(named, known, facts.model_version):
            yield (
                f"{what} {path} names {' '.join(named)}, and the facts say {' '.join(known)}, {_SO}; correct `family` "
                "or `version`, or, if the name is what is wrong, state `facts: {model_version: ...}` for this pool"
            )
        variant = variant_of(name.lower())
        if variant not in ("none", facts.quantization) and "quantization" not in pool.facts:
            yield (
                f"{what} {path} names the variant {variant}, and the facts say {facts.quantization}, {_SO}; correct "
                "`quantization`, or, if the name is what is wrong, state it in `facts` for this pool"
            )


def _shared(model: ModelConfig, pool_name: str, pool: PoolConfig) -> Iterator[str]:
    """Yields each engine that an earlier pool of the model has too, and says another method of."""
    for name, other in model.pools.items():
        if name == pool_name:
            return
        shared = set(pool.addresses) & set(other.addresses)
        methods = {method_of(str(each.facts.get("method", UNKNOWN))) for each in (pool, other)}
        if shared and len(methods) > 1:
            yield (
                f"it and the pool {name} have the same engine, {min(shared)}, and state different methods of it; an "
                "engine drafts or does not: correct the url of one of them"
            )


def _agree(named: tuple[str, str], known: tuple[str, str], stated: str | None) -> bool:
    """Returns True if a name tells the known series and version, or less of it; or more, where nobody stated one."""
    (series, version), (known_series, known_version) = named, known
    vague = known_version.startswith(f"{version}.") or (stated is None and version.startswith(f"{known_version}."))
    return series == known_series and (version == known_version or vague)


def _of(name: str, version: str | None) -> tuple[str, str] | None:
    """Returns series and version that a name tells; a version that is stated outweighs it."""
    match = _VERSION.search(name)
    if match is None:
        return None
    series = re.sub(r"\W", "", match[1].lower()).removesuffix("k").removesuffix("v")
    if version is not None and _PLAIN.fullmatch(version):
        return series, version
    return series, ".".join(filter(None, (match[2], match[3])))


def unknown_options(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, message) for each engine argument that no vLLM is known to have."""
    for name, model, pool, _ in config.each_pool("vllm"):
        for option in full_names(model.engine_args_of(pool)):
            if option not in KNOWN and not _installed_vllm_has(option):
                written = option.replace("_", "-")
                near = get_close_matches(option, KNOWN, n=1)
                hint = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
                yield name, pool, f"vLLM has no engine argument {written!r}{hint}"


def missing_folders(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, message) for each folder of a model or drafter that is not on this machine.

    A text that may be a name on a model hub, such as `org/model`, is left to vLLM.
    """
    for name, model, pool, _ in config.each_pool("vllm"):
        for what, path in zip(("model", "drafter"), model.weights_of(pool), strict=True):
            if isinstance(path, str) and _is_folder(path) and not (Path(path).exists() or (_ROOT / path).exists()):
                yield name, pool, f"the folder of its {what}, {path}, is not on this machine"


def _is_folder(path: str) -> bool:
    """Returns True if a text is a path rather than a name on a model hub."""
    first, *rest = Path(path).parts or ("",)
    return (
        Path(path).is_absolute()
        or first in ("..", "~")
        or path.startswith("./")
        or len(rest) > 1
        or (bool(rest) and ((_ROOT / first).is_dir() or Path(first).is_dir()))
    )


def _installed_vllm_has(option: str) -> bool:
    """Returns True if the sources of the vLLM that is installed here, if any, name an option; it is not imported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return False
    folder = Path(spec.submodule_search_locations[0])
    word = re.compile(rf"\b{re.escape(option)}\b|--{re.escape(option.replace('_', '-'))}\b")
    files = (file for pattern in _SOURCES for file in folder.glob(pattern))
    return any(word.search(file.read_text(encoding="utf-8", errors="replace")) for file in files)


def graph_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what leaves the graphs and what to do) for each hosted vLLM pool."""
    for name, model, pool, _ in config.each_pool("vllm"):
        for text in uncovered_steps(config.facts_of(name, pool), full_names(model.engine_args_of(pool))):
            yield name, pool, text


def uncovered_steps(facts: PoolFacts, args: Mapping[str, Any]) -> Iterator[str]:
    """Yields what leaves the graphs of a vLLM."""
    graphs = args.get("compilation_config") or {}
    mode = str(graphs.get("cudagraph_mode") or "").lower()
    if not facts.speculative or mode == "none" or str(args.get("enforce_eager", False)).lower() == "true":
        return
    if facts.opt_out and mode != "full":
        latent = (facts.family or "").startswith(_LATENT)
        way_out = (
            "its attention (MLA) has no full graph for such a batch: send these requests to a pool without speculation"
            if latent
            else "set compilation-config: {cudagraph_mode: FULL}, with which it costs nothing"
        )
        yield f"opt_out: {_PRICE}; {way_out}"
    seats, drafts = args.get("max_num_seqs"), facts.num_speculative_tokens
    if isinstance(seats, int) and isinstance(drafts, int) and seats * (1 + drafts) > (largest := _largest(graphs)):
        yield (
            f"max-num-seqs {seats} with {drafts} drafts are {seats * (1 + drafts)} tokens a step, and the largest CUDA "
            f"graph holds {largest}: fuller batches run without one; lower max-num-seqs to {largest // (1 + drafts)}, "
            "or raise max_cudagraph_capture_size in compilation-config"
        )


def _largest(graphs: Mapping[str, Any]) -> int:
    sizes = graphs.get("cudagraph_capture_sizes")
    given = graphs.get("max_cudagraph_capture_size") or (max(sizes) if isinstance(sizes, list) and sizes else None)
    return given if isinstance(given, int) else _LARGEST


def seat_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str, str]]:
    """Yields (model, pool, level, message) for every hosted pool with more requests, or fewer, than seats."""
    for name, model, pool, settings in config.each_pool("vllm"):
        seats = model.engine_seats(pool)
        taken = settings.max_ongoing_requests
        if seats is not None and taken > seats:
            text = (
                f"a replica takes {taken} requests and its engine runs {seats}: up to {taken - seats} wait in there, "
                f"even if another pool or replica is idle; set max_ongoing_requests to {seats} (max-num-seqs)"
            )
            yield name, pool, "warning", text
        elif seats is not None and taken < seats:
            text = f"a replica takes {taken} requests, so {seats - taken} of its engine's {seats} seats stay free"
            yield name, pool, "info", text
