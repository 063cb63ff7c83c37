"""Every configuration key, from the JSON schema of the root model.

The schema carries types, defaults and bounds, and each class's docstring, whose `Attributes:` describe the keys. Only
the root is named here, so that classes can be renamed and moved.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from docs._generate.descriptions import DESCRIPTIONS
from docs._generate.markdown import code
from lab.sim.economics import Economics
from lab.sim.settings import SimSettings
from policies import PoolFacts
from serve.config.gateway import GatewayConfig

Schema = Mapping[str, Any]

_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}

_POSITIVE = {("minimum", 1), ("exclusiveMinimum", 0)}  # the page says that numbers are


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the configuration.

    Attributes:
        path: From the root, such as `models.MODEL.pools.POOL.kind`.
    """

    path: str
    type: str
    default: str
    description: str


def config_keys() -> list[Key]:
    """Returns every key, in the order of the code."""
    return [key for _, _, section in _sections() for key in section]


def sections() -> str:
    """Returns one heading and one list for each level of the configuration."""
    parts = []
    for prefix, intro, section in _sections():
        keys = "\n".join(_line(key, key.path.removeprefix(prefix + ".")) for key in section)
        heading = f"## `{prefix}`" if prefix else "## The root"
        parts.append("\n".join((heading, "", *([intro, ""] if intro else []), keys)))
    return "\n\n".join(parts)


def facts() -> str:
    """Returns the facts that `models.MODEL.pools.POOL.facts` can state."""
    return _fields(PoolFacts, "facts", skip={"model", "pool", "kind", "opt_out", "proven", "canary_share"})


def simulator() -> str:
    """Returns the settings of a simulated pool, and of its economics."""
    settings = _fields(SimSettings, "sim", skip={"model", "grammar", "thinking"})
    return f"{settings}\n\n`economics` has\n\n{_fields(Economics, 'economics', skip=set())}"


def _line(key: Key, name: str) -> str:
    default = {"none": "", "empty": "", "required": "required", "": ""}.get(key.default, key.default)
    return f"- {code(name)} ({'; '.join(filter(None, (key.type, default)))}): {key.description}"


def _sections() -> Iterator[tuple[str, str, list[Key]]]:
    schema = GatewayConfig.model_json_schema()
    yield from _walk("", schema, schema["$defs"])


def _walk(prefix: str, schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[tuple[str, str, list[Key]]]:
    intro, attributes = split_docstring(schema.get("description", ""))
    required = schema.get("required", ())
    section = []
    nested: list[tuple[str, Schema]] = []
    for name, value in schema["properties"].items():
        path = f"{prefix}.{name}" if prefix else name
        children = list(_children(path, value, definitions))
        nested += children
        section.append(
            Key(
                path,
                _type_of(value),
                "required" if name in required else _default_of(value, bool(children)),
                attributes.get(name) or DESCRIPTIONS.get(path, ""),
            )
        )
    yield prefix, _intro(prefix, intro), section
    for path, child in nested:
        yield from _walk(path, child, definitions)


def _intro(prefix: str, docstring: str) -> str:
    return DESCRIPTIONS.get(f"{prefix}.", docstring)


def _children(path: str, value: Schema, definitions: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    """Yields the objects that a key holds, with a placeholder for a name that users choose."""
    if "$ref" in value:
        yield path, definitions[value["$ref"].rsplit("/", 1)[1]]
    for choice in value.get("anyOf", ()):
        yield from _children(path, choice, definitions)
    if isinstance(items := value.get("items"), dict):
        yield from _children(f"{path}[]", items, definitions)
    placeholder = path.rsplit(".", 1)[-1].removesuffix("s").upper()
    for inner in (*value.get("patternProperties", {}).values(), value.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _children(f"{path}.{placeholder}", inner, definitions)


def _type_of(value: Schema) -> str:
    if "anyOf" in value:  # the default `none` says that a key may be null
        return ", or ".join(_type_of(choice) for choice in value["anyOf"] if choice.get("type") != "null")
    if "enum" in value:
        return ", ".join(code(str(choice)) for choice in value["enum"])
    if "$ref" in value:
        return "mapping"
    kind = value.get("type", "any")
    if kind == "array":
        items = _type_of(value.get("items", {}))
        return f"{items}s" if items.isalpha() else f"list of {items}"
    if kind == "object":
        return "mapping"
    if kind == "string" and "format" in value:
        return str(value["format"])
    bounds = " and ".join(
        text.format(f"{value[name]:g}")
        for name, text in _BOUNDS.items()
        if name in value and (name, value[name]) not in _POSITIVE
    )
    bounds = re.sub(r"≥ (\S+) and ≤ (\S+)", r"\1 to \2", bounds)
    return f"{kind} {bounds}".strip()


def _default_of(value: Schema, nested: bool) -> str:
    default = value.get("default", {} if value.get("type") == "object" else None)
    if nested and default not in (None, []):
        return ""
    match default:
        case bool():
            return code(str(default).lower())
        case None:
            return "none"
        case float():
            return code(f"{default:g}")
        case [] | ():
            return "empty"
        case {}:
            return "empty"
        case _:
            return code(str(default))


def _fields(cls: type, prefix: str, skip: set[str]) -> str:
    _, attributes = split_docstring(inspect.cleandoc(cls.__doc__ or ""))
    return "\n".join(
        f"- {code(field.name)}: {attributes.get(field.name) or DESCRIPTIONS.get(f'{prefix}.{field.name}', '')}"
        for field in dataclasses.fields(cls)
        if field.name not in skip
    )


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into the text before `Attributes:` and the text of each attribute."""
    intro, _, rest = docstring.partition("Attributes:")
    attributes: dict[str, str] = {}
    name = ""
    for line in rest.splitlines():
        if started := re.match(r"\s{4}(\w+): (.*)", line):
            name, text = started.groups()
            attributes[name] = text
        elif name and line.startswith(" " * 5):
            attributes[name] += " " + line.strip()
    return " ".join(intro.split()), attributes
