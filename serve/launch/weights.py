"""Whether a model's folder is complete, and how to fill it: what a node can do before an engine needs it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.model_shape import hub_name


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that an engine of the configuration loads.

    Attributes:
        used_by: The pools, as `model/pool`.
        missing: Files that should be there; empty when it is complete.
        hub: Its name on the model hub, where known.
        gigabytes: Size of the weights that are there.
    """

    path: str
    used_by: tuple[str, ...]
    missing: tuple[str, ...]
    hub: str | None
    gigabytes: float


def folders(config: GatewayConfig) -> tuple[Folder, ...]:
    """Every model and draft model that an engine of the configuration loads, as this node has it."""
    users: dict[str, list[str]] = {}
    for name, path in _named(config):
        users.setdefault(path, []).append(name)
    return tuple(
        Folder(path, tuple(names), tuple(_missing(Path(path))), hub_name(path), _gigabytes(Path(path)))
        for path, names in users.items()
    )


def download(folder: Folder) -> None:
    """Fill the folder from the model hub; what is there already is not loaded again.

    Raises:
        ConfigError: Its name on the hub is not known, or the hub can't be reached.
    """
    if folder.hub is None:
        raise ConfigError(f"{folder.path}: its name on the model hub is not known; put the files there yourself")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError("downloads need the package huggingface_hub, which vLLM brings along") from error
    try:
        snapshot_download(folder.hub, local_dir=folder.path)
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors, a wrong name is a ValueError
        raise ConfigError(f"{folder.hub} can't be downloaded: {error}") from error


def _named(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    for name, model, pool, settings in config.each_pool():
        if settings.kind == "vllm":
            args = model.engine_args_of(pool)
            draft = (args.get("speculative-config") or {}).get("model")
            yield from ((f"{name}/{pool}", str(path)) for path in (args.get("model", name), draft) if path)


def _missing(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        yield "the folder"
        return
    if not (folder / "config.json").is_file():
        yield "config.json"
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not any(folder.glob("*.safetensors")):
            yield "*.safetensors"
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        yield f"{index.name} (it can't be read)"
        return
    yield from sorted(name for name in shards if not (folder / name).is_file())


def _gigabytes(folder: Path) -> float:
    return sum(each.stat().st_size for each in folder.glob("*.safetensors")) / 1e9 if folder.is_dir() else 0.0
