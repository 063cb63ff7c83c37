"""What the names of weights tell: families in the words of the advisories, versions, variants and owners."""

import re
from typing import NamedTuple


class NamedModel(NamedTuple):
    """The facts that the name of a model's weights tells.

    Attributes:
        version: Within the family; None if the name has none.
        hybrid: It has layers with a recurrent state; None where that is not known of the family.
    """

    family: str
    version: str | None
    hybrid: bool | None


class _Named(NamedTuple):
    pattern: re.Pattern[str]
    family: str  # may take up the version
    hybrid: bool | None


_V = r"(?P<version>\d(?:\.\d+)?)"
_NO_MORE = r"(?![\d.]*\d)"


def _named(pattern: str, family: str, hybrid: bool | None) -> _Named:
    return _Named(re.compile(pattern, re.IGNORECASE), family, hybrid)


# The first that matches decides.
_FAMILIES = (
    _named(r"kimi-?linear", "kimi-linear", True),
    _named(r"kimi-?k3", "kimi-k3", True),
    _named(r"kimi-?k(?P<version>2\.?[5-9]|2)(?!\d)", "kimi-k2", False),
    _named(r"qwen-?3-?coder-?next|qwen-?3-?next", "qwen3-next", True),
    _named(r"qwen-?(?P<version>3\.8)-?flash", "qwen3.8-flash", True),  # another architecture than Qwen3.8
    _named(rf"qwen-?(?P<version>3\.[5-9]){_NO_MORE}", "qwen{version}", True),
    _named(r"qwen-?(?P<version>3)-?coder", "qwen3-coder", False),
    _named(r"qwen-?(?P<version>3)-?vl", "qwen3-vl", False),
    _named(r"qwen-?(?P<version>2\.5|3)-?omni", "qwen{version}-omni", False),
    _named(r"qwen-?(?P<version>3)(?![\d.])", "qwen3", False),
    _named(r"qwen-?(?P<version>2\.5|2)-?vl", "qwen{version}-vl", False),
    _named(rf"qwen-?(?P<version>2\.5|2){_NO_MORE}", "qwen{version}", False),
    _named(r"glm-?(?P<version>4\.[56])v", "glm-{version}v", False),
    _named(rf"glm-?(?P<version>4\.[567]|5\.[012]|5)(?!b){_NO_MORE}", "glm-{version}", False),
    _named(rf"glm-?(?P<version>[45](?:\.\d)?)(?!b){_NO_MORE}", "glm-{version}", None),
    _named(rf"deepseek-?v{_V}{_NO_MORE}", "deepseek-v{version}", False),
    _named(r"deepseek-?r1(?!-?distill)", "deepseek-r1", False),
    _named(rf"minimax-?m(?P<version>[23](?:\.\d)?){_NO_MORE}", "minimax-m{version}", False),
    _named(r"gpt-?oss", "gpt-oss", False),
    _named(r"gemma-?(?P<version>[34])(?!\d)", "gemma-{version}", False),
    _named(rf"llama-?(?P<version>[23](?:\.\d)?)(?!b){_NO_MORE}", "llama-{version[0]}", False),
    _named(r"mi[sx]tral", "mistral", False),
    _named(rf"mimo-?v{_V}{_NO_MORE}", "mimo-v2", None),
    _named(r"nemotron-?h\b|nemotron-?3", "nemotron-h", True),
    _named(r"step-?(?P<version>3\.\d)(?!\d)", "step-{version}", False),
    _named(rf"exaone-?{_V}{_NO_MORE}", "exaone-{version}", None),
    _named(rf"granite-?(?P<version>4(?:\.\d)?){_NO_MORE}", "granite-{version}", None),
    *(_named(name, name, True) for name in ("falcon-h1", "bamba", "jamba", "zamba", "plamo")),
)


_VARIANTS = (("nvfp4", ("nvfp4", "modelopt_fp4")), ("fp8", ("fp8",)), ("awq", ("awq",)), ("gptq", ("gptq",)))
# The hub caches a model under models--org--name/snapshots/<hash>; the last part of that path is not its name.
_HUB_FOLDER = re.compile(r"models--([^/]*?)--([^/]+)")
_HUB_NAME = re.compile(r"([^./][^/]*)/[^/]+")


def model_of(name: str) -> NamedModel | None:
    """Returns what a name of weights tells, such as `org/name` or a folder; None if no family of it is known.

    The last part of a path that tells a family decides.
    """
    for part in reversed(name.rstrip("/").split("/")):
        for known in _FAMILIES:
            if match := known.pattern.search(part):
                version = match.groupdict().get("version")
                if version and len(version) > 1 and "." not in version:
                    version = f"{version[0]}.{version[1:]}"  # Kimi-K25
                return NamedModel(known.family.format(version=version), version, known.hybrid)
    return None


def variant_of(text: str) -> str:
    """Returns the usual name of the weights' variant; `none` if no name mentions one."""
    return next((name for name, marks in _VARIANTS if any(mark in text for mark in marks)), "none")


def plain_variant(name: str) -> str:
    """Returns the usual name of a variant, however it is called: `FP8` is `fp8`, and `modelopt_fp4` is `nvfp4`."""
    plain = name.lower()
    return next((usual for usual, names in _VARIANTS if plain in names), plain)


def short_name(path: str) -> str:
    """Returns a model's own name, given as `org/name`, as a folder or as a folder of the hub's cache."""
    hub = _HUB_FOLDER.search(path)
    return hub[2] if hub else path.rstrip("/").rsplit("/", 1)[-1]


def plain_family(name: str) -> str:
    """Returns the name of a family, however people write it, as the advisories do: `Kimi-K2` is `kimi-k2`."""
    return short_name(name).lower()


def owner(path: str) -> str:
    """Returns a model's organisation, given as `org/name` or as a folder of the hub's cache; else an empty text."""
    hub = _HUB_FOLDER.search(path) or _HUB_NAME.fullmatch(path)
    return hub[1] if hub else ""
