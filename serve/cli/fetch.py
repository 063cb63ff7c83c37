"""`specgate fetch`: checks that the models of this node's engines are present and complete, or downloads them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from serve.cli.output import FOUND, Json, print_json, print_table
from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.memory import hub_name
from serve.tools.doctor import first_of


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that an engine of the configuration loads.

    Attributes:
        used_by: The pools, as `model/pool`.
        missing: Files that should be there; empty if it is complete.
        hub: Its name on the model hub, if known.
    """

    path: str
    used_by: tuple[str, ...]
    missing: tuple[str, ...]
    hub: str | None
    gigabytes: float


def fetch(
    config: Annotated[Path, typer.Option("--config", "-c", help="A Serve config, or the gateway's part alone.")],
    download: Annotated[bool, typer.Option("--download", help="Download what is missing from the model hub.")] = False,
    as_json: Json = False,
) -> None:
    """Check the model folders of a configuration on this node.

    It finds within a second what an engine reports after minutes.
    """
    parsed = GatewayConfig.load(config)
    if download:
        for folder in folders(parsed):
            if folder.missing:
                fill(folder)
    found = folders(parsed)
    if as_json:
        print_json([asdict(folder) for folder in found])
    else:
        print_table(("folder", "GB", "missing", "used by", "hub"), map(_row, found))
    if any(folder.missing for folder in found):
        raise typer.Exit(FOUND)


def _row(folder: Folder) -> Sequence[str | Text]:
    missing = Text(first_of(folder.missing, 3), "red") if folder.missing else Text("nothing", "green")
    return folder.path, f"{folder.gigabytes:.1f}", missing, ", ".join(folder.used_by), folder.hub or ""


def folders(config: GatewayConfig) -> tuple[Folder, ...]:
    """Returns the folder of every model and draft model that the engines load, as it is on this node."""
    users: dict[str, list[str]] = {}
    for name, path in _named(config):
        users.setdefault(path, []).append(name)
    return tuple(
        Folder(path, tuple(names), tuple(_missing(Path(path))), hub_name(path), _gigabytes(Path(path)))
        for path, names in users.items()
    )


def fill(folder: Folder) -> None:
    """Fills the folder from the model hub; existing files are not downloaded again.

    Raises:
        ConfigError: Its name on the hub is unknown, or the hub can't be reached.
    """
    if folder.hub is None:
        raise ConfigError(f"{folder.path}: its name on the model hub is unknown; put the files there yourself")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError("downloads need the package huggingface_hub; it is installed with vLLM") from error
    try:
        snapshot_download(folder.hub, local_dir=folder.path)
    except (OSError, ValueError) as error:  # the hub's errors are OSErrors, a wrong name is a ValueError
        raise ConfigError(f"{folder.hub} can't be downloaded: {error}") from error


def _named(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    for name, model, pool, _ in config.each_pool("vllm"):
        weights, drafter = model.weights_of(pool)
        yield from ((f"{name}/{pool}", path) for path in (weights or name, drafter) if path)


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
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9 if folder.is_dir() else 0.0
