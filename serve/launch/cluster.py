"""Reads a cluster file for Ray's launcher: its nodes, start commands, and the Serve config that it deploys."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from serve.errors import ConfigError
from serve.launch.placement import Node

Document = Mapping[str, Any]
_OFFERS = ("num-cpus", "num-gpus", "resources")


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


def deployed_config(document: Document) -> str | None:
    """Returns the path, on the head, given to `specgate deploy --config`; None if the file deploys nothing."""
    for words in _commands(document, "head"):
        at = _find(words, "specgate", "deploy")
        if at is not None:
            options = _options(words[at + 2 :])
            return options.get("config") or options.get("c")
    return None


def local_path(document: Document, remote: str) -> Path:
    """Maps a path on the nodes to this machine by `file_mounts`; returns it unchanged if no mount contains it."""
    for target, source in (document.get("file_mounts") or {}).items():
        try:
            return Path(source).expanduser() / PurePosixPath(remote).relative_to(target)
        except ValueError:
            continue
    return Path(remote).expanduser()


def nodes(document: Document) -> tuple[Node, ...]:
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
