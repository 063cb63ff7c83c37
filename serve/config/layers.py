"""YAML files that extend one another: a variant holds what differs and names what it is a variant of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from serve.errors import ConfigError


def read(path: str | Path) -> dict[str, Any]:
    """The document of a file, laid over the file that its `extends` names, and so on down.

    `extends` is a path relative to the file that holds it. See `overlay` for how one document is laid over another.

    Raises:
        ConfigError: A file can't be read, is no YAML mapping, or extends itself.
    """
    return _read(Path(path), ())


def dump(document: Mapping[str, Any]) -> str:
    """The document as YAML in the order of its keys, with every repeated part written out."""
    text: str = yaml.dump(document, Dumper=_WrittenOut, sort_keys=False, allow_unicode=True, width=120)
    return text


class _WrittenOut(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def overlay(base: Any, layer: Any) -> Any:
    """Lay one document over another.

    Mappings are merged key by key, and a key that the layer sets to null is removed. Lists whose items all have a
    `name` are merged by that name; every other list, and every other value, is replaced.
    """
    if isinstance(base, Mapping) and isinstance(layer, Mapping):
        merged = {key: value for key, value in base.items() if key not in layer}
        news = {key: overlay(base.get(key), value) for key, value in layer.items() if value is not None}
        order = [*base, *(key for key in layer if key not in base)]
        return {key: (news | merged)[key] for key in order if key in news or key in merged}
    if _named(base) and _named(layer):
        return list(overlay({each["name"]: each for each in base}, {each["name"]: each for each in layer}).values())
    if isinstance(layer, Mapping):
        return {key: overlay(None, value) for key, value in layer.items() if value is not None}
    return layer


def _named(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, dict) and "name" in each for each in value)


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in above:
        raise ConfigError(f"{path} extends itself, by way of {' -> '.join(map(str, above))}")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no mapping")
    base = document.pop("extends", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise ConfigError(f"{path}: `extends` is the path of one file, not {base!r}")
    merged: dict[str, Any] = overlay(_read(path.parent / base, (*above, resolved)), document)
    return merged
