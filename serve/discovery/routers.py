"""Reads the configuration of other gateways and routers for the engines behind them: LiteLLM, vLLM's router. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serve.config.gateway import OF_LITELLM, OF_ROUTERS
from serve.discovery.described import DescribedEngine, Description
from serve.discovery.reading import part

# LiteLLM's names of providers whose `api_base` may be an engine; without one they are a provider's own service.
_SELF_HOSTED = frozenset(("hosted_vllm", "vllm", "openai", "openai_like", "custom_openai", "text-completion-openai"))
_NO_KEYS = frozenset(("", "none", "null", "empty", "not-needed", "no-key", "dummy", "fake-key", "fake", "na", "n/a"))
_CARRIED = frozenset(("model", "api_base", "api_key"))
_LITELLM = {
    "router_settings": "each request is routed by what is safe for it and by load",
    "litellm_settings": "fallbacks, caches, callbacks and dropped parameters have no like here",
    "general_settings": "keys and budgets are `specgate keys` and `specgate tenants`",
    "environment_variables": "set them where specgate runs",
    "guardrails": "the guard of tool calls and JSON is always on",
    "mcp_servers": "tools of its own are not offered",
}
_ALIAS = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._/-]*\*?|\*)[A-Za-z0-9._/-]*")
_ROUTERS = ("vllm-router", "sglang-router", "sgl-model-gateway", "smg", "sgl-router", "lmstack-router")
_MODULES = ("vllm_router.app", "sglang_router.launch_router", "sglang_router.launch_server")
_SHORT = {"worker_url": "worker_urls"}
_ROUTING = {
    "routing_logic": "routing", "policy": "routing", "session_key": "routing", "prefill": "prefill and decode apart",
    "decode": "prefill and decode apart", "prefill_model_labels": "prefill and decode apart",
    "external_providers": "providers", "external_providers_config": "providers", "callbacks": "callbacks",
    "semantic_cache": "caches",
}  # fmt: skip


def is_litellm(document: Mapping[str, Any]) -> bool:
    """Returns whether a document is LiteLLM's `config.yaml`."""
    return isinstance(document.get(OF_LITELLM), list)


def read_litellm(document: Mapping[str, Any], source: str, env: Mapping[str, str]) -> Description:
    """Reads LiteLLM's `config.yaml`. `os.environ/NAME` in it reads environment variables."""
    engines, left = [], []
    for entry in document[OF_LITELLM]:
        name, given = _entry(entry)
        place = f"{source}: model_list, {name}"
        base = _text(given.get("api_base"), env)
        provider, _, model = str(given.get("model", "")).partition("/")
        if provider not in _SELF_HOSTED:
            left.append(
                f"{place}: {provider or 'no model'} is a provider's own service, or no engine that is known here"
            )
        elif base is None:
            left.append(f"{place}: no api_base that is set here, so that nobody knows where the engine is")
        else:
            key, told = _key(given.get("api_key"), place)
            left += told
            engines.append(DescribedEngine(place, base, key, _names(name, model, document)))
        if more := sorted(set(given) - _CARRIED):
            left.append(f"{place}: {', '.join(more)}")
    left += [f"{source}: {part}: {why}" for part, why in _LITELLM.items() if document.get(part)]
    return Description(tuple(engines), tuple(left))


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    return (str(entry.get("model_name", "")), part(entry, "litellm_params")) if isinstance(entry, Mapping) else ("", {})


def _names(name: str, model: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names under which clients ask for a model; a pattern that hands every name on tells none."""
    aliases = part(part(document, "router_settings"), "model_group_alias")
    also = [str(alias) for alias, group in aliases.items() if _group(group) == name]
    return tuple(each for each in ([] if "*" in model else [name, *also]) if _ALIAS.fullmatch(each))


def _group(alias: Any) -> Any:
    return alias.get("model") if isinstance(alias, Mapping) else alias


def _text(value: Any, env: Mapping[str, str]) -> str | None:
    text = str(value or "")
    return (env.get(text.removeprefix("os.environ/")) if text.startswith("os.environ/") else text) or None


def _key(value: Any, place: str) -> tuple[str | None, list[str]]:
    """Returns the environment variable of a key. One that stands in the file is not carried to another file."""
    text = str(value or "")
    if text.startswith("os.environ/"):
        return text.removeprefix("os.environ/"), []
    plain = text.lower() in _NO_KEYS or text.lower().startswith(("sk-1234", "fake", "dummy"))
    return None, [] if plain else [f"{place}: its api_key, written out there: --api-key-env URL=NAME"]


def is_router(document: Mapping[str, Any]) -> bool:
    """Returns whether a document configures vLLM's router (production-stack), or holds its values for Helm."""
    return any(name in document for name in OF_ROUTERS)


def read_router(document: Mapping[str, Any], source: str) -> Description:
    """Reads the dynamic configuration of production-stack's router, or `routerSpec` of its values."""
    given = part(document, "routerSpec") or document
    plain = {_snake(str(name)): value for name, value in given.items()}
    models = plain.get("static_models")
    aliases = plain.get("static_aliases")
    if isinstance(models, Mapping):
        pairs = [(url, str(name)) for name in models for url in _listed(part(models, name).get("static_backends"))]
        plain |= {"static_backends": [url for url, _ in pairs], "static_models": [name for _, name in pairs]}
    if isinstance(aliases, Mapping):
        plain["static_aliases"] = [f"{alias}:{model}" for alias, model in aliases.items()]
    return _of_options(plain, source)


def read_router_command(words: Sequence[str], source: str) -> Description | None:
    """Reads the command line of vLLM's, SGLang's or production-stack's router; None if it is none."""
    at = next((place for place, word in enumerate(words) if _starts_router(word)), None)
    return None if at is None else _of_options(dict(_options(words[at + 1 :])), source)


def _starts_router(word: str) -> bool:
    name = word.removeprefix("-m").rsplit("/", 1)[-1].partition(":")[0]
    return name in _ROUTERS or name in _MODULES or name.endswith(_MODULES)


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            if name:
                yield name, values
            head, equals, value = word.removeprefix("--").partition("=")
            name, values = _SHORT.get(_snake(head), _snake(head)), [value] if equals else []
        else:
            values.append(word)
    if name:
        yield name, values


def _of_options(given: Mapping[str, Any], source: str) -> Description:
    urls = _listed(given.get("static_backends")) or _listed(given.get("worker_urls"))
    models = _listed(given.get("static_models"))
    aliases = [each.partition(":")[::2] for each in _listed(given.get("static_aliases"))]
    engines, left = [], []
    for place, url in enumerate(urls):
        if not url.startswith("http"):
            left.append(f"{source}: {url}: engines are reached by HTTP here")
            continue
        model = models[place] if place < len(models) else ""
        names = [model, *(alias for alias, of in aliases if of == model)] if model else []
        engines.append(DescribedEngine(source, url, names=tuple(each for each in names if _ALIAS.fullmatch(each))))
    if selector := given.get("selector") or given.get("k8s_label_selector"):
        left.append(
            f"{source}: pods by the labels {' '.join(_listed(selector))}: name their Service in the pool's `endpoints`"
        )
    left += [f"{source}: {name}: {why}" for name, why in _ROUTING.items() if given.get(name)]
    return Description(tuple(engines), tuple(left))


def _listed(given: Any) -> list[str]:
    parts = given if isinstance(given, list) else [given] if given else []
    return [each.strip() for part in parts for each in str(part).split(",") if each.strip()]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower().replace("-", "_")
