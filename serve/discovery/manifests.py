"""Reads Compose files, Kubernetes manifests, production-stack's values and scripts for the engines they start. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from policies.command_line import EngineCommand, read_command, read_container
from policies.errors import PolicyError
from serve.discovery.described import DescribedEngine, Description
from serve.discovery.routers import is_litellm, is_router, part, read_litellm, read_router, read_router_command
from serve.errors import ConfigError

_PORTS = {"vllm": 8000, "sglang": 30000}
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_PUBLISHED = re.compile(r"(?:.*:)?(?P<host>\d+):(?P<container>\d+)(?:/tcp)?")
_RUNS_PODS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Pod", "LeaderWorkerSet", "Job")
# What production-stack's chart makes of its `vllmConfig`.
_OF_VALUES = {
    "maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs", "gpuMemoryUtilization": "--gpu-memory-utilization", "maxLoras": "--max-loras",
}  # fmt: skip
_STARTS = re.compile(r"\b(vllm|sglang) serve\b|-m\s*(vllm|sglang)\.|\b(docker|podman|nerdctl)\b.*\brun\b")
_RELEASE = "vllm"  # of its documentation: `helm install vllm vllm/vllm-stack`


def read_description(text: str, source: str, env: Mapping[str, str]) -> Description:
    """Reads whatever people start engines with, or have in front of them.

    Args:
        text: A command line, a script, or YAML.
        source: Where it stands, for messages.
        env: Environment variables, for what the text leaves to them.

    Raises:
        ConfigError: It holds no engine.
    """
    documents = _documents(text)
    parts = [_of_document(each, source, env) for each in documents] if documents else [_of_script(text, source, env)]
    if documents:
        parts.append(_of_pods(documents, source))
    found = sum(parts, Description())
    if not found.engines and not found.left:
        raise ConfigError(
            f"{source} holds no engine: it should be a command line or script with `vllm serve` or SGLang's, a Compose "
            "file, Kubernetes manifests, LiteLLM's config.yaml, or a configuration of vLLM's router"
        )
    return found


def _documents(text: str) -> list[Mapping[str, Any]]:
    try:
        loaded = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return []
    flat = [item for each in loaded for item in _items(each)]
    return [each for each in flat if isinstance(each, Mapping)]


def _items(document: Any) -> list[Any]:
    """Returns the objects of a Kubernetes List, or the document."""
    if isinstance(document, Mapping) and isinstance(document.get("items"), list):
        return list(document["items"])
    return [document]


def _of_document(document: Mapping[str, Any], source: str, env: Mapping[str, str]) -> Description:
    if is_litellm(document):
        return read_litellm(document, source, env)
    found = _of_values(part(document, "servingEngineSpec"), source)
    if is_router(document):
        found += read_router(document, source)
    for name, service in part(document, "services").items():
        found += _of_service(str(name), service, source, env)
    return found


def _of_service(name: str, service: Any, source: str, env: Mapping[str, str]) -> Description:
    """Reads a service of a Compose file: its published port from outside, else the port in its network."""
    if not isinstance(service, Mapping):
        return Description()
    place = f"{source}: {name}"
    filled = _filled(service, env)
    found = _command(filled, place)
    if not isinstance(found, EngineCommand):
        return found
    published = _published(filled.get("ports"), _port(found))
    is_outside = published is not None or filled.get("network_mode") == "host"
    return _at(found, "127.0.0.1" if is_outside else name, published, place)


def _at(command: EngineCommand, host: str, published: int | None, place: str) -> Description:
    """Returns an engine on a host, at a port that is published, or else at its own if that is known."""
    if published is None and "port" in command.unknown:
        why = f"{place}: a variable has its port, so that its URL is not known; its command line counts all the same"
        return Description((DescribedEngine(place, command=command),), (why,))
    return Description((DescribedEngine(place, f"http://{host}:{published or _port(command)}", command=command),))


def _command(container: Mapping[str, Any], place: str) -> EngineCommand | Description:
    """Returns the command of a container; if it runs no engine, what else it tells."""
    try:
        command = read_container(container)
    except PolicyError as error:
        return Description(left=(f"{place}: {error}",))
    if command is not None:
        return command
    words = [str(container.get("image", "")), *_listed(container.get("command")), *_listed(container.get("args"))]
    return read_router_command(words, place) or Description()


def _listed(given: Any) -> list[str]:
    return given.split() if isinstance(given, str) else [str(each) for each in _sequence(given)]


def _published(ports: Any, inside: int) -> int | None:
    for each in ports if isinstance(ports, list) else ():
        if isinstance(each, Mapping):
            if each.get("target") == inside and str(each.get("published", "")).isdecimal():
                return int(each["published"])
        elif (match := _PUBLISHED.fullmatch(str(each))) and int(match["container"]) == inside:
            return int(match["host"])
    return None


def _filled(value: Any, env: Mapping[str, str]) -> Any:
    """Returns a part of a Compose file with variables in place, as Compose fills them; others stay as they are."""
    if isinstance(value, Mapping):
        return {key: _filled(each, env) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, env) for each in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[3]) or match[2] or match[0], value)


def _port(command: EngineCommand) -> int:
    given = command.args.get("port")
    return given if isinstance(given, int) else _PORTS[command.engine]


def _of_pods(documents: Sequence[Mapping[str, Any]], source: str) -> Description:
    """Reads pods, each behind the Service that selects it."""
    services = [each for each in documents if each.get("kind") == "Service"]
    found = Description()
    for each in documents:
        if each.get("kind") not in _RUNS_PODS:
            continue
        template = each if each["kind"] == "Pod" else part(part(each, "spec"), "template")
        labels = part(part(template, "metadata"), "labels")
        place = f"{source}: {each['kind']} {part(each, 'metadata').get('name')}"
        for container in _mappings(part(template, "spec").get("containers")):
            command = _command(container, place)
            if not isinstance(command, EngineCommand):
                found += command
                continue
            service = next((one for one in services if _selects(one, labels)), None)
            found += _behind(service, container, command, place)
    return found


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in _sequence(value) if isinstance(each, Mapping)]


def _selects(service: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    selector = part(part(service, "spec"), "selector")
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


def _behind(
    service: Mapping[str, Any] | None, container: Mapping[str, Any], command: EngineCommand, place: str
) -> Description:
    if service is None:
        why = (
            f"{place}: no Service selects its pods, so that its URL is not known; its command line counts all the same"
        )
        return Description((DescribedEngine(place, command=command),), (why,))
    named = {str(port.get("name")): port.get("containerPort") for port in _mappings(container.get("ports"))}
    about, spec = part(service, "metadata"), part(service, "spec")
    inside = _port(command)
    targets = {
        port.get("port"): named.get(str(port.get("targetPort")), port.get("targetPort", port.get("port")))
        for port in _mappings(spec.get("ports"))
    }
    outside = next((port for port, target in targets.items() if target == inside), next(iter(targets), inside))
    headless = spec.get("clusterIP") == "None"
    host = ".".join(str(about[name]) for name in ("name", "namespace") if about.get(name))
    url = f"http://{host}:{inside if headless else outside}"
    return Description((DescribedEngine(place, url, resolve=headless, command=command),))


def _of_values(spec: Mapping[str, Any], source: str) -> Description:
    """Reads `servingEngineSpec` of production-stack's values, whose chart makes command lines and Services of it."""
    port = spec.get("servicePort", 80)
    engines, left = [], []
    for model in _mappings(spec.get("modelSpec")):
        if model.get("enabled") is False:
            continue
        name = model.get("name")
        place = f"{source}: modelSpec {name}"
        if part(model, "lmcacheConfig").get("enablePD"):
            left.append(f"{place}: prefill and decode apart")
            continue
        image = f"{model.get('repository')}:{model.get('tag')}"
        command = read_command([image, "vllm", "serve", str(model.get("modelURL")), *_words_of_values(model)])
        url = f"http://{_RELEASE}-{name}-engine-service:{port}"
        engines.append(DescribedEngine(place, url, command=command))
        left.append(f"{place}: taken for {url}; give the URL if the release is not called {_RELEASE}")
    return Description(tuple(engines), tuple(left))


def _words_of_values(model: Mapping[str, Any]) -> Iterator[str]:
    if model.get("enableLoRA"):
        yield "--enable-lora"
    if parser := model.get("toolCallParser"):
        yield from ("--tool-call-parser", str(parser))
    if config := part(model, "vllmConfig"):
        yield "--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching"
        for name, option in _OF_VALUES.items():
            if name in config:
                yield from (option, str(config[name]))
        yield from map(str, _sequence(config.get("extraArgs")))
    if part(model, "lmcacheConfig").get("enabled"):
        yield from ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')


def _of_script(text: str, source: str, env: Mapping[str, str]) -> Description:
    """Reads each command of a script that starts an engine or a router."""
    found = Description()
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        if (router := read_router_command(words, source)) is not None:
            found += router
            continue
        try:
            command = read_command([line]) if _STARTS.search(line) else None
        except PolicyError:
            continue
        if command is not None:
            ports = [each for at, each in enumerate(words) if at and words[at - 1] in ("-p", "--publish")]
            found += _at(command, "127.0.0.1", _published(ports, _port(command)), source)
    return found
