"""YAML files as people write them; one may extend another: a variant names its base and holds the differences only."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from serve.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"
_FLOAT, _TEXT = "tag:yaml.org,2002:float", "tag:yaml.org,2002:str"
# What PyYAML says of common mistakes, and what to do.
_ADVICE = {
    "'\\t'": "YAML is indented with spaces, not with tabs",
    "unhashable key": "if this is a template's `{{ }}`, render it first",
    "another document": "a configuration is one document, without a `---` inside",
    "constructor for the tag": "there are no tags, and variables are not filled in",
}


def read(path: str | Path) -> dict[str, Any]:
    """Reads a file and lays it over the file that its `extends` names, recursively.

    `extends` is a path relative to the file that holds it. See `overlay` for the rules.

    Raises:
        ConfigError: A file can't be read, is not a YAML mapping, or extends itself.
    """
    return _read(Path(path), ())


class RepeatedKeyError(yaml.MarkedYAMLError):
    """Of two equal keys, which YAML forbids and PyYAML takes, the first would be lost without a word."""


def parse_yaml(text: str) -> Any:
    """Returns the value that a YAML document stands for.

    Raises:
        yaml.YAMLError: It is none, or nested too deeply; `RepeatedKeyError` if a key in it stands twice.
    """
    try:
        return yaml.load(text, Loader=_Careful)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error


def dump(document: Mapping[str, Any]) -> str:
    """Returns the document as YAML in the order of its keys, with every repeated part written out."""
    text: str = yaml.dump(document, Dumper=_WrittenOut, sort_keys=False, allow_unicode=True, width=120)
    return text


class _WrittenOut(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Careful(yaml.SafeLoader):
    """Refuses a key that stands twice, and reads keys and versions as they are written: a model called `no` would be
    False, version 0.20 would be 0.2.
    """

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            key.tag = _TEXT
            if key.value in seen:
                raise RepeatedKeyError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
            if key.value.endswith("version") and value.tag == _FLOAT:
                value.tag = _TEXT
        return node


def overlay(base: Any, layer: Any) -> Any:
    """Lays one document over another.

    Mappings are merged key by key, and a key that the layer sets to null is removed. Lists whose items all have a
    `name` are merged by that name; every other list, and every other value, is replaced.
    """
    if isinstance(layer, Mapping):
        merged = dict(base) if isinstance(base, Mapping) else {}
        for key, value in layer.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = overlay(merged.get(key), value)
        return merged
    if _has_names(base) and _has_names(layer):
        by_name = overlay({item["name"]: item for item in base}, {item["name"]: item for item in layer})
        return list(by_name.values())
    return layer


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(item, dict) and "name" in item for item in value)


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    resolved = Path(os.path.realpath(path))  # before Python 3.13, `resolve` fails where links lead in a circle
    if resolved in above:
        raise ConfigError(f"{path} extends itself, by way of {' -> '.join(map(str, above))}")
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text, save it as such: {error}") from error
    except yaml.YAMLError as error:
        advice = "".join(f"; {advice}" for text, advice in _ADVICE.items() if text in str(error))
        raise ConfigError(f"{path} is not YAML: {error}{advice}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no mapping: it should begin with `models:`, as deploy/remote.yaml does")
    base = document.pop("extends", None)
    if base is None:
        return document
    if not isinstance(base, str):
        raise ConfigError(f"{path}: `extends` is the path of one file, not {base!r}")
    merged: dict[str, Any] = overlay(_read(path.parent / base, (*above, resolved)), document)
    return merged
