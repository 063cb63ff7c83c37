"""Reads Compose files, Kubernetes manifests, production-stack's values and scripts for the engines they start. Pure."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import yaml

from policies.command_line import EngineCommand, read_command, read_container
from policies.errors import PolicyError
from serve.discovery.described import DescribedEngine, Description
from serve.discovery.reading import part
from serve.discovery.routers import is_litellm, is_router, read_litellm, read_router, read_router_command
from serve.errors import ConfigError

_PORTS = {"vllm": 8000, "sglang": 30000}
_VARIABLE = re.compile(r"\$\{(\w+)(?::?([-?+])([^}]*))?\}|\$(\w+)")
_ASSIGNED = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>\S*|'[^']*'|\"[^\"]*\")\s*(?:#.*)?$")
_PUBLISHED = re.compile(
    r"(?:(?:(?P<address>.*):)?(?P<host>\$\{[^}]*\}|[^:{}]+):)?(?P<first>\d+)(?:-(?P<last>\d+))?(?:/tcp)?"
)
_RANGE = re.compile(r"(\d+)-(\d+)")
_ANY_ADDRESS = ("", "0.0.0.0", "[::]", "::")
_ANY_PORT = "any that is free"
_HERE = "127.0.0.1"
# What production-stack's chart makes of its `vllmConfig`.
_OF_VALUES = {
    "maxModelLen": "--max-model-len", "dtype": "--dtype", "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs", "gpuMemoryUtilization": "--gpu-memory-utilization", "maxLoras": "--max-loras",
}  # fmt: skip
_HOST_NETWORK = re.compile(r"--net(?:work)?(?:=|\s+)host\b")
_STARTS = re.compile(r"\b(vllm|sglang) serve\b|-m\s*(vllm|sglang)\.|\b(docker|podman|nerdctl)\b.*\brun\b")
_RUNS_CONTAINER = re.compile(r"\b(docker|podman|nerdctl)\b.*\brun\b")
_OPEN = re.compile(r"[$`]")
_QUOTED = r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*"|\#[^\n]*"""  # and comments
# Up to the end of its last line; an apostrophe is one of prose that names a command.
_WHOLE_COMMAND = re.compile(rf"""(?:[^'"#\\\n]|(?<=\w)'(?=\w)|{_QUOTED})*""", re.DOTALL)
_ARRAY = re.compile(
    r"^\s*(?:(?:declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?(?P<name>\w+)=\((?P<words>"
    rf"""(?:\$\([^()]*\)|[^()'"#\\]|{_QUOTED})*)\)""",
    re.MULTILINE | re.DOTALL,
)
_ADDED_TO = re.compile(r"\b(\w+)\+=\(")
_WHOLE_ARRAY = re.compile(r"""["']?\$\{(\w+)\[[@*]\]\}["']?""")
_RELEASE = "vllm"  # of its documentation: `helm install vllm vllm/vllm-stack`


def read_description(text: str, source: str, env: Mapping[str, str]) -> Description:
    """Reads whatever people start engines with, or have in front of them. It is a command line, a script or YAML, and
    may leave something to environment variables.

    Raises:
        ConfigError: It holds no engine.
    """
    documents = _documents(text)
    found = sum((_of_document(each, source, env) for each in documents), _of_pods(documents, source))
    is_foreign = any("apiVersion" in each for each in documents)
    if not found.engines and not found.left and not is_foreign:  # a line with `"key": value` in it is YAML as well
        found = _of_script(text, source)
    keys = [each for each in found.engines if each.command is not None and "api_key" in each.command.args]
    found += Description(
        left=tuple(f"{each.source}: its --api-key, written out there: --api-key-env URL=NAME" for each in keys)
    )
    found = replace(found, left=tuple(dict.fromkeys(found.left)))  # pods alike have notes alike
    if not found.engines and not found.left:
        raise ConfigError(
            f"{source} holds no engine: it should be a command line or script with `vllm serve` or SGLang's, a unit of "
            "systemd, a Compose file, Kubernetes manifests, Ray Serve's configuration of LLMs, LiteLLM's config.yaml, "
            "or a configuration of vLLM's router"
        )
    return found


def _documents(text: str) -> list[Mapping[str, Any]]:
    try:
        loaded = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError):
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
    found = _of_values(part(document, "servingEngineSpec"), source) + _of_ray(document, source)
    if is_router(document):
        found += read_router(document, source)
    for name, service in part(document, "services").items():
        found += _of_service(str(name), service, source, env)
    for inner in _within(document):
        found += _of_document(inner, source, env)
    kind = f"{str(document.get('apiVersion')).partition('/')[0]}/{document.get('kind')}"
    return found + _OF_OPERATORS[kind](document, source) if kind in _OF_OPERATORS else found


def _within(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the configurations of proxies that a ConfigMap, or the values of LiteLLM's chart, hold."""
    texts = part(document, "data").values() if document.get("kind") == "ConfigMap" else ()
    found = [each for text in texts for each in _documents(str(text))]
    yield from (each for each in (*found, part(document, "proxy_config")) if is_litellm(each) or is_router(each))


def _of_service(name: str, service: Any, source: str, env: Mapping[str, str]) -> Description:
    """Reads a service of a Compose file: its published port from outside, else the port in its network."""
    if not isinstance(service, Mapping):
        return Description()
    place = f"{source}: {name}"
    filled = _filled(service, env)
    found = _command(filled, place)
    if not isinstance(found, EngineCommand):
        return found
    if filled.get("network_mode") == "host":
        return _at(found, _HERE, _port(found), place)
    return _at(found, *(_published(filled.get("ports"), _port(found)) or (name, _port(found))), place)


def _at(command: EngineCommand, host: str, port: int | str | None, place: str) -> Description:
    """Returns an engine on a host at a port, or nowhere if what is given for that is no number."""
    if isinstance(port, int):
        return Description((DescribedEngine(place, f"http://{host}:{port}", command=command),))
    return _nowhere(command, place, "its port is not given" if port is None else f"its port is {port}")


def _nowhere(command: EngineCommand, place: str, why: str) -> Description:
    line = f"{place}: {why}, so that its URL is not known; its command line counts all the same"
    return Description((DescribedEngine(place, command=command),), (line,))


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


def _published(ports: Any, inside: int | str) -> tuple[str, int | str] | None:
    """Returns the host and its port that lead to one of a container; a text if only the reader's shell knows it."""
    for each in ports if isinstance(ports, list) else ():
        address, host, first, last = _port_mapping(each)
        if not first.isdecimal() or not isinstance(inside, int) or not int(first) <= inside <= int(last):
            continue
        found: int | str = int(host) if host.isdecimal() else host
        if (several := _RANGE.fullmatch(host)) and int(several[2]) - int(several[1]) == int(last) - int(first):
            found = int(several[1]) + inside - int(first)
        if "$" in address:
            return _HERE, f"published at {address}"
        address = f"[{address}]" if ":" in address and not address.startswith("[") else address
        return _HERE if address in _ANY_ADDRESS else address, found
    return None


def _port_mapping(published: Any) -> tuple[str, str, str, str]:
    """Returns the address and the port of the host, and the first and the last port of the container."""
    if isinstance(published, Mapping):
        target = str(published.get("target"))
        return str(published.get("host_ip") or ""), str(published.get("published") or _ANY_PORT), target, target
    match = _PUBLISHED.fullmatch(str(published))
    if match is None:
        return "", _ANY_PORT, "", ""
    return match["address"] or "", match["host"] or _ANY_PORT, match["first"], match["last"] or match["first"]


def _filled(value: Any, env: Mapping[str, str]) -> Any:
    """Returns a part of a Compose file with variables in place, as Compose fills them; others stay as they are."""
    if isinstance(value, Mapping):
        return {key: _filled(each, env) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, env) for each in value]
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda match: _value(match, env), value)


def _value(match: re.Match[str], env: Mapping[str, str]) -> str:
    """Returns what stands for a variable; itself if that is not known, as in the shell of who is to set it."""
    name, sign, word = match[1] or match[4], match[2], match[3]
    if value := env.get(name):
        return word if sign == "+" else value
    return word if sign == "-" and word else match[0]


def _port(command: EngineCommand) -> int | str:
    """Returns the port that an engine listens on; a text if its command line leaves it to a variable."""
    given = "a variable" if "port" in command.unknown else command.args.get("port")
    return given if isinstance(given, int | str) else _PORTS[command.engine]


def _of_pods(documents: Sequence[Mapping[str, Any]], source: str) -> Description:
    """Reads pods, each behind the Service that selects it."""
    services = [each for each in documents if each.get("kind") == "Service"]
    found = Description()
    for each in documents:
        if "apiVersion" not in each:
            continue
        place = f"{source}: {each.get('kind')} {part(each, 'metadata').get('name')}"
        for labels, containers in _pods(each, each.get("kind") == "Pod"):
            for container in containers:
                command = _command(container, place)
                if not isinstance(command, EngineCommand):
                    found += command
                    continue
                behind = sorted(
                    (one for one in services if _selects(one, labels) and _may_share(one, each)),
                    key=lambda one: _namespace(one) != _namespace(each),
                )
                found += _behind(behind, _named_ports(containers), command, place)
    return found


def _pods(node: Any, is_pod: bool = True) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Yields the labels and the containers of each pod that an object describes, of whatever kind it is."""
    if not isinstance(node, Mapping):
        return
    spec = part(node, "spec")
    if containers := _mappings(spec.get("containers")):
        yield part(part(node, "metadata"), "labels") if is_pod else {}, containers
    elif containers := _mappings(node.get("containers")):  # as KServe's `predictor`, whose pods get labels of their own
        yield {}, containers
    else:
        for inner in node.values():
            for each in inner if isinstance(inner, list) else (inner,):
                yield from _pods(each)


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in _sequence(value) if isinstance(each, Mapping)]


def _selects(service: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    selector = part(part(service, "spec"), "selector")
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


def _namespace(document: Mapping[str, Any]) -> str | None:
    given = part(document, "metadata").get("namespace")
    return None if given is None else str(given)


def _may_share(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two objects may be in one namespace; whoever applies them says where those go that name none."""
    return len({_namespace(one), _namespace(other)} - {None}) < 2


def _named_ports(containers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the ports of a pod by their names, which its containers share."""
    ports = (port for container in containers for port in _mappings(container.get("ports")))
    return {str(port["name"]): port.get("containerPort") for port in ports if "name" in port}


def _behind(
    services: Sequence[Mapping[str, Any]], named: Mapping[str, Any], command: EngineCommand, place: str
) -> Description:
    """Returns an engine behind the first of the Services that leads to its port."""
    inside = _port(command)
    if not services:
        return _nowhere(command, place, "no Service selects its pods")
    if isinstance(inside, str):
        return _nowhere(command, place, f"its port is {inside}")
    for service in services:
        about, headless = part(service, "metadata"), part(service, "spec").get("clusterIP") == "None"
        if (port := inside if headless else _leading(service, named, inside)) is not None:
            host = ".".join(str(about[name]) for name in ("name", "namespace") if about.get(name))
            url = f"http://{host}:{port}"
            return Description((DescribedEngine(place, url, resolve=headless, command=command),))
    return _nowhere(command, place, f"Service {part(services[0], 'metadata').get('name')} leads elsewhere")


def _leading(service: Mapping[str, Any], named: Mapping[str, Any], inside: int) -> Any:
    """Returns the port of a Service that leads to one of a pod; None if none does."""
    for port in _mappings(part(service, "spec").get("ports")):
        target = port.get("targetPort", port.get("port"))
        if named.get(str(target), target) == inside:
            return port.get("port")
    return None


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


def _of_kubeai(document: Mapping[str, Any], source: str) -> Description:
    """Reads a Model of KubeAI, whose operator starts the pods, and which has one address for all models."""
    spec, name = part(document, "spec"), part(document, "metadata").get("name")
    place = f"{source}: Model {name}"
    if spec.get("engine") != "VLLM":
        return Description(left=(f"{place}: {spec.get('engine')} is no engine that is known here",))
    scheme, _, path = str(spec.get("url")).partition("://")
    weights = path.partition("?")[0] if scheme == "hf" else "/model"
    env = [f"{key}={value}" for key, value in part(spec, "env").items()]
    words = [*env, "vllm", "serve", weights, "--served-model-name", str(name), *map(str, _sequence(spec.get("args")))]
    return _nowhere(read_command(words), place, "KubeAI has one address for all models")


def _of_vllm_runtime(document: Mapping[str, Any], source: str) -> Description:
    """Reads a VLLMRuntime, of which production-stack's operator makes a command line and a Service."""
    spec, about = part(document, "spec"), part(document, "metadata")
    config = {**spec, **part(spec, "model"), **part(spec, "vllmConfig")}
    image = part(part(spec, "deploymentConfig") or spec, "image").get("name")
    values = {**config, "vllmConfig": config, "lmcacheConfig": part(spec, "lmCacheConfig")}
    words = [str(image), "vllm", "serve", str(config.get("modelURL")), *_words_of_values(values)]
    host = ".".join(str(about[name]) for name in ("name", "namespace") if about.get(name))
    return _at(read_command(words), host, 80, f"{source}: VLLMRuntime {about.get('name')}")


# Objects of which an operator makes engines.
_OF_OPERATORS: Mapping[str, Callable[[Mapping[str, Any], str], Description]] = {
    "kubeai.org/Model": _of_kubeai,
    "production-stack.vllm.ai/VLLMRuntime": _of_vllm_runtime,
}


def _of_ray(document: Mapping[str, Any], source: str) -> Description:
    """Reads Ray Serve's configuration of LLMs, which serves each application with vLLM behind one address."""
    options = part(document, "http_options")
    base = f"http://127.0.0.1:{options.get('port', 8000)}"
    found = Description()
    for application in _mappings(document.get("applications")):
        place = f"{source}: application {application.get('name')}"
        given = part(application, "args").get("llm_configs")
        llms = _mappings(given)
        prefix = str(application.get("route_prefix") or "/").rstrip("/")
        if len(llms) == 1:
            found += Description((DescribedEngine(place, base + prefix, command=_command_of_ray(llms[0])),))
        elif given:
            why = "files of their own" if not llms else f"{len(llms)} models at one URL, whose facts are not told apart"
            found += Description((DescribedEngine(place, base + prefix),), (f"{place}: {why}",))
    return found


def _command_of_ray(llm: Mapping[str, Any]) -> EngineCommand:
    loading = part(llm, "model_loading_config")
    name, weights = loading.get("model_id"), loading.get("model_source")
    words = ["vllm", "serve", weights if isinstance(weights, str) else str(name), "--served-model-name", str(name)]
    command = read_command(words)
    args = {str(key).replace("-", "_"): value for key, value in part(llm, "engine_kwargs").items()}
    env = {str(key): str(value) for key, value in part(part(llm, "runtime_env"), "env_vars").items()}
    return replace(command, args={**command.args, **args}, env=env)


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


def _of_script(text: str, source: str) -> Description:
    """Reads each command of a script, or of a unit of systemd, that starts an engine or a router."""
    found = Description()
    lines = _with_arrays(re.sub(r"\\\s*\n", " ", text)).splitlines()
    if "[Container]" in lines:
        lines = [_of_quadlet(lines)]
    own = _assigned(lines)
    for written in _with_their_ends(lines):
        line = str(_filled(re.sub(r"^\s*ExecStart=[-@:+!]*", "", written), own))
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
            found += _at(command, *_place_outside(line, words, _port(command)), source)
    return found


def _with_arrays(text: str) -> str:
    """Returns a script with an array's words where it is used. What is added to it later, mostly under a condition, is
    not known.
    """
    arrays: dict[str, list[str]] = {}
    for match in _ARRAY.finditer(text):
        with suppress(ValueError):
            arrays.setdefault(match["name"], []).append(shlex.join(shlex.split(match["words"], comments=True)))
    added_to = frozenset(_ADDED_TO.findall(text))

    def words(match: re.Match[str]) -> str:
        given = arrays.get(match[1], ())
        return given[0] + (' "$@"' if match[1] in added_to else "") if len(given) == 1 else match[0]

    used = _WHOLE_ARRAY.sub(words, _ARRAY.sub("", text))
    return _WHOLE_ARRAY.sub(words, used)  # one array may be a part of another


def _with_their_ends(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a script; one that starts an engine goes on until its last quotation mark is closed."""
    text = "\n".join(lines)
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if _STARTS.search(text, at, end):
            match = _WHOLE_COMMAND.match(text, at)
            if match is not None and text[match.end() : match.end() + 1] in ("", "\n"):  # else one is never closed
                end = match.end()
        yield text[at:end]
        at = end + 1


def _of_quadlet(lines: Sequence[str]) -> str:
    """Returns the command that Podman makes of a `.container` unit."""
    given: dict[str, list[str]] = {}
    for name, equals, value in (line.partition("=") for line in lines):
        if equals:
            given.setdefault(name.strip(), []).append(value.strip())
    ports = [f"-p {each}" for each in given.get("PublishPort", ())]
    env = [f"-e {each}" for each in given.get("Environment", ())]
    network = [f"--network={each}" for each in given.get("Network", ())]
    return " ".join(["podman run", *ports, *env, *network, *given.get("Image", ()), *given.get("Exec", ())])


def _assigned(lines: Sequence[str]) -> dict[str, str]:
    """Returns the variables that a script gives one value and no other, as far as that is a plain text."""
    given: dict[str, set[str]] = {}
    for match in filter(None, map(_ASSIGNED.match, lines)):
        value = str(_filled(match["value"].strip("\"'"), {}))
        given.setdefault(match["name"], set()).add(value)
    return {
        name: value
        for name, values in given.items()
        for value in values
        if len(values) == 1 and not _OPEN.search(value)
    }


def _place_outside(line: str, words: Sequence[str], inside: int | str) -> tuple[str, int | str | None]:
    """Returns the host and the port at which the engine of a command can be reached; no port if there is none."""
    if not _RUNS_CONTAINER.search(line) or _HOST_NETWORK.search(line):
        return _HERE, inside
    published = [each for at, each in enumerate(words) if at and words[at - 1] in ("-p", "--publish")]
    published += [match[1] for word in words if (match := re.match(r"(?:--publish=|-p(?=[\d\[$]))(.+)", word))]
    return _published(published, inside) or (_HERE, None)
