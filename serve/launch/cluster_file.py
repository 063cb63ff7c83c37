"""A cluster file of Ray's launcher: its nodes, start commands and the Serve config that it deploys, and what is wrong
with the file itself, by Ray's own schema and by what this gateway needs of how nodes start.
"""

import contextlib
import copy
import ipaddress
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from serve.errors import ConfigError

Document = Mapping[str, Any]
_OFFERS = ("num-cpus", "num-gpus", "resources")
# Ray Serve reads them when a process starts; without them the data plane costs thirty times as much (ADR 0002).
FLAGS = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
_LOCAL_NEEDS = (("provider", "head_ip"), ("provider", "worker_ips"), ("auth", "ssh_user"))
_EXAMPLE_NETS = tuple(map(ipaddress.ip_network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")))
_ROLES = ("head", "worker")


@dataclass(frozen=True, slots=True)
class Node:
    """A node and the resources that it offers.

    Attributes:
        resources: By Ray's names: `CPU`, `GPU`, and custom ones. A missing `CPU` means unknown, so not limited.
    """

    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StartCommand:
    """One `ray start` command of the file.

    Attributes:
        options: Its options, without dashes in front; a switch has the value `true`.
    """

    env: Mapping[str, str]
    options: Mapping[str, str]

    @property
    def resources(self) -> dict[str, float]:
        """The resources that the node offers; CPUs only if stated."""
        try:
            numbers = {
                name: float(self.options[option])
                for name, option in (("CPU", "num-cpus"), ("GPU", "num-gpus"))
                if option in self.options
            }
            custom = json.loads(self.options.get("resources", "{}"))
            return {**numbers, **{str(name): float(amount) for name, amount in custom.items()}}
        except (ValueError, TypeError, AttributeError) as error:
            given = " ".join(f"--{name}={value}" for name, value in self.options.items() if name in _OFFERS)
            raise ConfigError(
                f"`ray start {given}` can't be read: --num-cpus and --num-gpus are numbers, --resources is a JSON "
                "mapping of names to numbers; write them out, without variables"
            ) from error


def start_commands(document: Document, role: str) -> tuple[StartCommand, ...]:
    """Returns every `ray start` of the `head` or of a `worker`, in order."""
    return tuple(_start(words) for words in _commands(document, role) if _find(words, "ray", "start") is not None)


def deployed_configs(document: Document) -> list[str]:
    """Returns the paths, on the head, given to `specgate deploy --config`, each once; the last one stays deployed."""
    paths: list[str] = []
    for words in _commands(document, "head"):
        at = _find(words, "specgate", "deploy")
        options = _options(words[at + 2 :]) if at is not None else {}
        if (path := options.get("config") or options.get("c")) and "dry-run" not in options:
            paths = [*(each for each in paths if each != path), path]
    return paths


def local_path(document: Document, remote: str) -> Path:
    """Maps a path on the nodes to this machine by `file_mounts`; returns it unchanged if no mount contains it."""
    for target, source in (document.get("file_mounts") or {}).items():
        try:
            return Path(source).expanduser() / PurePosixPath(remote).relative_to(target)
        except ValueError:
            continue
    return Path(remote).expanduser()


def nodes_of(document: Document) -> tuple[Node, ...]:
    """Returns the nodes of the cluster at its full size.

    Raises:
        ConfigError: A start command can't be read.
    """
    types = document.get("available_node_types")
    if types:
        head = document.get("head_node_type")
        return tuple(
            Node(
                name if name == head else f"{name}-{number}",
                {resource: float(amount) for resource, amount in (kind.get("resources") or {}).items()},
            )
            for name, kind in types.items()
            for number in range(1, 1 + (1 if name == head else kind.get("max_workers", kind.get("min_workers", 0))))
        )
    provider = document.get("provider") or {}
    workers = provider.get("worker_ips") or []
    return (
        Node(f"head {provider.get('head_ip')}", _offered(document, "head")),
        *(Node(f"worker {address}", _offered(document, "worker")) for address in workers),
    )


def docker_options(document: Document, role: str) -> tuple[str, ...] | None:
    """Returns `docker run`'s options on the `head` or a `worker`, as words; None if the nodes run without Docker."""
    docker = document.get("docker") or {}
    if not (docker.get("image") or docker.get(f"{role}_image")):
        return None
    lines = [*(docker.get("run_options") or []), *(docker.get(f"{role}_run_options") or [])]
    return tuple(word for line in lines for word in shlex.split(line))


def option_values(words: Iterable[str], *names: str) -> list[str]:
    """Returns the values of a repeatable option, written `--name value` or `--name=value`."""
    all_words = list(words)
    values = []
    for word, following in zip(all_words, [*all_words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            values.append(value if equals else following)
    return values


def _commands(document: Document, role: str) -> list[list[str]]:
    """Returns each start command as words; commands joined by `;`, `&&` or `|` are separate."""
    lines = document.get(f"{role}_start_ray_commands") or []
    return [words for line in lines for part in re.split(r"&&|\|\||[;\n|]", line) if (words := _split(part))]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the start command {command.strip()!r} can't be read: {error}") from error


def _find(words: list[str], *wanted: str) -> int | None:
    for at in range(len(words) - len(wanted) + 1):
        if PurePosixPath(words[at]).name == wanted[0] and tuple(words[at + 1 : at + len(wanted)]) == wanted[1:]:
            return at
    return None


def _start(words: list[str]) -> StartCommand:
    at = _find(words, "ray", "start")
    assert at is not None
    env = dict(word.split("=", 1) for word in words[:at] if "=" in word)
    return StartCommand(env, _options(words[at + 2 :]))


def _options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, following in zip(words, [*words, "-"][1:], strict=True):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            options[name] = value if equals else "true" if following.startswith("-") else following
    return options


def _offered(document: Document, role: str) -> dict[str, float]:
    commands = start_commands(document, role)
    return commands[-1].resources if commands else {}


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One thing to fix.

    Attributes:
        level: `error` (it can't work), `todo` (a placeholder to replace), `warning` (it may not work).
    """

    level: Literal["error", "todo", "warning"]
    about: str
    message: str


def file_findings(document: Document) -> Iterator[ClusterFinding]:
    """Yields everything that is wrong with the file itself."""
    yield from _placeholders(document)
    needs = list(_local_needs(document))
    yield from needs
    if not needs:  # Ray's own check would stop at the same keys with a worse message
        yield from _schema(document)
    yield from _mounts(document)
    for role in _ROLES:
        yield from _start_findings(document, role)
        yield from _docker(document, role)


def _local_needs(document: Document) -> Iterator[ClusterFinding]:
    provider = document.get("provider") or {}
    if provider.get("type") == "local" and "coordinator_address" not in provider:
        for section, key in _LOCAL_NEEDS:
            if (document.get(section) or {}).get(key) is None:
                yield ClusterFinding("error", f"{section}.{key}", "required by Ray's launcher for your own machines")
        if document.get("available_node_types"):
            text = "not supported for your own machines: state a node's resources in `ray start --num-gpus --resources`"
            yield ClusterFinding("error", "available_node_types", text)
        workers = provider.get("worker_ips")
        addresses = [provider.get("head_ip"), *(workers if isinstance(workers, list) else ())]
        for address in sorted({str(each) for each in addresses if addresses.count(each) > 1}):
            text = f"{address} stands twice: a machine is the head or a worker, and once; the head may have GPUs itself"
            yield ClusterFinding("error", "provider", text)


def _schema(document: Document) -> Iterator[ClusterFinding]:
    """Runs the checks of `ray up`, without starting anything."""
    import click
    import jsonschema
    from ray import autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    try:
        jsonschema.validate(document, schema)  # the original first: errors in Ray's completed form are harder to read
        with contextlib.redirect_stdout(sys.stderr):  # Ray's launcher prints, but standard output is ours
            validate_config(prepare_config(copy.deepcopy(dict(document))))
    except jsonschema.ValidationError as error:
        yield ClusterFinding("error", ".".join(map(str, error.absolute_path)) or "(root)", error.message)
    except (ValueError, KeyError, TypeError, AssertionError, RuntimeError, click.ClickException) as error:
        yield ClusterFinding("error", "(root)", f"Ray's launcher rejects the file: {error or type(error).__name__}")


def _placeholders(document: Document) -> Iterator[ClusterFinding]:
    provider = document.get("provider") or {}
    for address in filter(None, [provider.get("head_ip"), *(provider.get("worker_ips") or [])]):
        with contextlib.suppress(ValueError):  # a host name is fine
            if any(ipaddress.ip_address(address) in net for net in _EXAMPLE_NETS):
                yield ClusterFinding("todo", "provider", f"{address} is an example address: put your node's")
    image = str((document.get("docker") or {}).get("image") or "")
    if image.startswith("registry.example.com/"):
        yield ClusterFinding(
            "todo", "docker.image", f"{image} is an example: build our Dockerfile and put your own image's name"
        )


def _mounts(document: Document) -> Iterator[ClusterFinding]:
    for target, source in (document.get("file_mounts") or {}).items():
        if Path(source).expanduser().exists():
            continue
        if target.endswith("/.ray/auth_token"):
            text = f"{source} does not exist: `ray get-auth-token --generate` makes the cluster's token"
            yield ClusterFinding("warning", f"file_mounts.{target}", text)
        else:
            text = f"{source} does not exist; a relative path starts where `ray up` is run"
            yield ClusterFinding("error", f"file_mounts.{target}", text)


def _start_findings(document: Document, role: str) -> Iterator[ClusterFinding]:
    about = f"{role}_start_ray_commands"
    commands = start_commands(document, role)
    if not commands:
        yield ClusterFinding("error", about, "no `ray start` among them")
    for command in commands:
        yield from _missing_flags(document, role, command)
        required = {"head": "head", "worker": "address"}[role]
        if required not in command.options:
            yield ClusterFinding("error", about, f"`ray start` needs --{required} there")
        if role == "head" and "autoscaling-config" not in command.options:
            text = "`ray start --head` needs --autoscaling-config=~/ray_bootstrap_config.yaml to start the workers"
            yield ClusterFinding("error", about, text)
        if role == "head" and _counts_the_head(document, command):
            text = (
                "put RAY_enable_autoscaler_v2=0 in front of `ray start --head`: autoscaler v2 counts the head as one "
                "of your own machines, and one worker would never start"
            )
            yield ClusterFinding("error", about, text)


def _counts_the_head(document: Document, command: StartCommand) -> bool:
    """Returns True if the autoscaler counts the head as a worker.

    Ray's local provider has one node type, which the head shares, and autoscaler v2 counts nodes by type.
    """
    provider = document.get("provider") or {}
    own = provider.get("type") == "local" and bool(provider.get("worker_ips"))
    return own and command.env.get("RAY_enable_autoscaler_v2") != "0"


def _missing_flags(document: Document, role: str, command: StartCommand) -> Iterator[ClusterFinding]:
    docker = option_values(docker_options(document, role) or (), "--env", "-e")
    environment = {**dict(value.partition("=")[::2] for value in docker), **command.env}
    missing = [name for name, value in FLAGS.items() if environment.get(name) != value]
    if missing:
        text = (
            f"{' '.join(f'{name}=1' for name in missing)} must be set in front of `ray start`: Ray Serve reads it there"
        )
        yield ClusterFinding("error", f"{role}_start_ray_commands", text)
    if environment.get("RAY_AUTH_MODE") != "token":
        text = (
            "without RAY_AUTH_MODE=token in front of `ray start`, whoever reaches Ray's ports can run code on this "
            "node: set it on every node, or close their network (docs/how-to/secure-a-cluster.md)"
        )
        yield ClusterFinding("warning", f"{role}_start_ray_commands", text)


def _docker(document: Document, role: str) -> Iterator[ClusterFinding]:
    words = docker_options(document, role)
    if words is None:
        return
    has_gpus = any(command.resources.get("GPU") for command in start_commands(document, role))
    if has_gpus and not option_values(words, "--gpus"):
        yield ClusterFinding(
            "error", f"docker.{role}_run_options", "the node has GPUs: the container needs `--gpus all`"
        )
    if not option_values(words, "--shm-size") and not option_values(words, "--ipc"):
        yield ClusterFinding("error", f"docker.{role}_run_options", "set --shm-size: engines and Ray use shared memory")


def shared_memory_gib(words: tuple[str, ...]) -> float | None:
    """Returns a container's `--shm-size`; None if it shares the host's or does not state one."""
    if "host" in option_values(words, "--ipc"):
        return None
    for value in option_values(words, "--shm-size"):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmg]?)b?", value.strip("'\"").lower())
        if match:
            return float(match[1]) * {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}[match[2]] / 2**30
    return None


def volumes_of(words: tuple[str, ...]) -> Mapping[str, str]:
    """Returns folders in the container -> folders on the node."""
    pairs = (value.split(":") for value in option_values(words, "--volume", "-v"))
    return {pair[1]: pair[0] for pair in pairs if len(pair) >= 2}
