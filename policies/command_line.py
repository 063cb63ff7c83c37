"""Reads the command line of an engine as a shell and the engine would, as far as it tells: nothing is guessed."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from packaging.version import Version

from policies import sglang_options, vllm_options
from policies.errors import PolicyError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")  # of a shell, and of Kubernetes
_NO_ENGINE = r"(?![\w-]*(?:router|gateway|proxy|sidecar|exporter))"  # what engines of that name are seldom without
_IMAGES = {
    "vllm": re.compile(rf"(?:^|/)vllm{_NO_ENGINE}(?:-openai|-cpu)?[\w-]*(?=:|@|$)"),
    "sglang": re.compile(rf"(?:^|/)sglang{_NO_ENGINE}[\w-]*(?=:|@|$)"),
}
# Accelerators that an image's name or tag, a variable's name or an option's value names; everything else is CUDA.
_PLATFORMS = {"ascend": "ascend", "cann": "ascend", "npu": "ascend", "metax": "metax", "maca": "metax", "xpu": "xpu",
              "gaudi": "gaudi", "habana": "gaudi", "rocm": "rocm", "mi35x": "rocm", "mi30x": "rocm"}  # fmt: skip
_PLATFORM_OF_VARIABLE = re.compile(
    r"(?P<ascend>ASCEND_|HCCL_|VLLM_ASCEND_|PYTORCH_NPU_)|(?P<gaudi>HABANA_|PT_HPU_)|(?P<metax>MACA_)|"
    r"(?P<rocm>VLLM_ROCM_|SGLANG_USE_AITER|SGLANG_AITER|HIP_|ROCR_|HSA_)|(?P<xpu>ZE_AFFINITY|ONEAPI_)"
)
_PLATFORM_OF_VALUE = {"npu": "ascend", "ascend": "ascend", "hpu": "gaudi", "xpu": "xpu", "aiter": "rocm"}
_TELLING = frozenset(
    ("device", "quantization", "attention_backend", "decode_attention_backend", "prefill_attention_backend",
     "moe_backend", "moe_runner_backend", "linear_backend")
)  # fmt: skip
_DEVICE_OF_BUFFERS = re.compile(r"kv_buffer_device\W+(\w+)")  # of a connector, inside its mapping
# Images whose tags are no versions of their engine: LMCache's, NVIDIA's and its Dynamo's, Red Hat's, KServe's, OPEA's.
_OF_ITS_MAKER = re.compile(r"(?:^|/)(?:lmcache|nvidia|ai-dynamo|rhaiis|rhaii|kserve|opea)/|-runtime[:@]")
_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?(?:[-.]?(?:post|rc)\d+)?)(?=$|[-+@])")
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
}
_KNOWN_OPTION = {"vllm": vllm_options.known_option, "sglang": sglang_options.known_option}
_SHELL = ("-c", "-lc", "-ec")
_PROGRAM = re.compile(r"(?:.*/)?(?:(?:ba|a|z)?sh|python[\d.]*|ray|env)$")  # no weights, and no options of an engine
_OF_CONTAINERS = ("-v", "--volume", "--name", "-w", "--workdir", "--mount")  # their values may look like an image
_END = re.compile(r"(?:[|&;<>]+|\d?>.*)$")  # what ends a command in a shell
_ALL_WORDS = ("$@", "$*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?$")
# Options without a value, by how their names begin; argparse takes none, whatever follows.
_SWITCH = re.compile(
    r"(no_|enable_|disable_|trust_remote_code$|trust_request|async_scheduling$|enforce_eager$|headless$|skip_|use_|"
    r"language_model_only$|fully_sharded|return_|calculate_kv|allow_|show_|speculative_adaptive$|data_parallel_hybrid_lb$|"
    r"data_parallel_external_lb$|tokens_only$|log_error_stack$|grpc$|is_embedding$|mm_encoder_only$)"
)
_VALUED = frozenset({"enable_log_deltas"})
_SEVERAL = frozenset(
    ("served_model_name", "lora_modules", "cudagraph_capture_sizes", "allowed_origins", "middleware", "cuda_graph_bs")
)


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command line of one engine.

    Attributes:
        engine: `vllm` or `sglang`.
        version: As the image's tag tells it; None if nothing does.
        model: The weights; None if the line leaves them to a variable.
        args: Options by their names with underscores.
        unknown: Options whose values the line leaves to variables.
        platform: As the image, a variable or an option tells it; `cuda` if nothing does.
        more: It takes in words that it does not tell, such as `"$@"` or `$EXTRA_ARGS`: any option may be among them.
        config: The file of further options that nobody has read.
    """

    engine: str
    version: str | None
    model: str | None
    args: Mapping[str, Any]
    unknown: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    platform: str = "cuda"
    more: bool = False
    config: str | None = None


def read_command(words: Sequence[str]) -> EngineCommand:
    """Reads `vllm serve ...`, `python -m sglang.launch_server ...` and their like, behind any prefix. It takes the
    words of the line, or one text with all of it, be that a container's part of a Compose file or of a Kubernetes
    manifest.

    Raises:
        PolicyError: It starts no engine that is known here, or can't be split.
    """
    if len(words) == 1:
        return _of_file(words[0]) or _read(_split(words[0]))
    return _read(words)


def _read(found: Sequence[str], starts_image: bool = True) -> EngineCommand:
    """Reads the words of a line. With `starts_image`, what follows an image goes to the program that the image starts;
    else it is a program itself.
    """
    env: dict[str, str] = {}
    version = None
    platform = "cuda"
    for place, word in enumerate(found):
        rest = found[place + 1 :]
        if entry := _entry(word, rest):
            engine, words_of_its_own = entry
            return _on(platform, _command(engine, version, found[place + words_of_its_own :], env))
        script = rest[1:] if rest[:1] == ["--"] else rest
        if word in _SHELL and script and _mentions(script[0]):
            inner = read_command([_with_words(_filled(script[0], env), script[2:])])
            return _on(platform, replace(inner, version=inner.version or version, env={**env, **inner.env}))
        if _ASSIGNMENT.match(word.removeprefix("--env=")):
            name, value = word.removeprefix("--env=").split("=", 1)
            env[name] = _filled(value, env)
        elif engine_of_image := _image(word, found[place - 1] if place else ""):
            version, platform = _version(word), _platform(word)
            named_later = any(_mentions(each) or _entry(each, rest[at + 1 :]) for at, each in enumerate(rest))
            starts_engine = starts_image and rest and not _PROGRAM.match(rest[0])
            if engine_of_image == "vllm" and starts_engine and not named_later:
                return _on(platform, _command("vllm", version, rest, env))  # the image's own entry point is the engine
    raise PolicyError(
        "no engine in the command line: it should hold `vllm serve MODEL`, `python -m "
        "vllm.entrypoints.openai.api_server`, `python -m sglang.launch_server`, `sglang serve`, or an image of vLLM"
    )


def read_container(container: Mapping[str, Any]) -> EngineCommand | None:
    """Reads a container as Compose or Kubernetes describes it; None if it runs no engine.

    Raises:
        PolicyError: Its command can't be split.
    """
    image = container.get("image")
    if not isinstance(image, str):
        return None
    own = _words(container.get("entrypoint"))
    given, rest = _words(container.get("command")), _words(container.get("args"))
    tagged = image if ":" in image or "@" in image else f"{image}:latest"
    words = [*_environment(container), tagged, *own, *given, *rest]
    names_one = any(_mentions(each) or _entry(each, words[at + 1 :]) for at, each in enumerate(words))
    if not (names_one or _engine_of(image)):
        return None
    # In Kubernetes, where containers have names, a `command` replaces the image's program; in Compose an `entrypoint`.
    is_replaced = bool(own or (given and (rest or "name" in container)))
    return _read(words, starts_image=not is_replaced)


def with_file(command: EngineCommand, text: str) -> EngineCommand:
    """Returns a command with the options in the text of its `--config` file. Those on the line outweigh them.

    Raises:
        PolicyError: The text is no YAML mapping.
    """
    try:
        options = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyError(f"{command.config} is not YAML: {error}") from error
    if not isinstance(options, Mapping):
        raise PolicyError(f"{command.config} holds no mapping of options")
    named = ((_full(command.engine, str(key)), value) for key, value in options.items() if value is not None)
    below = {f"no_{name}" if value is False else name: True if value is False else value for name, value in named}
    models = [str(below.pop(name)) for name in ("model", "model_path") if name in below]
    args = {name: value for name, value in below.items() if name not in command.unknown} | dict(command.args)
    return replace(command, model=command.model or next(iter(models), None), args=args, config=None)


def _of_file(text: str) -> EngineCommand | None:
    """Returns the engine's command in a text of Compose or Kubernetes; None if it is no such text."""
    if "image:" not in text:
        return None
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    commands = map(read_container, _mappings(document))
    return next((command for command in commands if command is not None), None)


def _mappings(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from _mappings(value)
    elif isinstance(node, list):
        for item in node:
            yield from _mappings(item)


def _words(given: Any) -> list[str]:
    return _split(given) if isinstance(given, str) else [str(word) for word in given or ()]


def _environment(container: Mapping[str, Any]) -> Iterator[str]:
    """Yields `NAME=value` for each variable of a container, however the file lists them."""
    given = container.get("environment") or container.get("env") or ()
    for item in given.items() if isinstance(given, Mapping) else given:
        if isinstance(item, Mapping):
            yield f"{item.get('name')}={item.get('value', '')}"
        else:
            yield item if isinstance(item, str) else f"{item[0]}={item[1]}"


def _split(text: str) -> list[str]:
    try:
        lexer = shlex.shlex(re.sub(r"\\\s*\n", " ", text), posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError as error:
        raise PolicyError(f"the command line can't be split into words: {error}") from error


def _entry(word: str, rest: Sequence[str]) -> tuple[str, int] | None:
    """Returns the engine that begins at a word, and how many words name it."""
    following = rest[0] if rest else ""
    name = word.rsplit("/", 1)[-1]
    if name in _IMAGES and following == "serve":
        return name, 2
    if word == "-m" and following in _MODULES:
        return _MODULES[following], 2
    return (_MODULES[module], 1) if (module := word.removeprefix("-m")) in _MODULES else None


def _mentions(text: str) -> bool:
    return " " in text and any(mark in text for mark in ("vllm serve", "sglang serve", *_MODULES))


def _image(word: str, before: str) -> str | None:
    """Returns the engine of a container's image; the value of an option is none."""
    if word.startswith("-") or "=" in word or not ("/" in word or ":" in word) or before in _OF_CONTAINERS:
        return None
    return _engine_of(word)


def _engine_of(image: str) -> str | None:
    return next((engine for engine, mark in _IMAGES.items() if mark.search(image)), None)


def _version(image: str) -> str | None:
    match = None if _OF_ITS_MAKER.search(image) else _TAG.search(image)
    return str(Version(match[1])) if match else None  # as the engine writes it: a maker's 0.20.0-rc1 is 0.20.0rc1


def _platform(image: str) -> str:
    return next((platform for mark, platform in _PLATFORMS.items() if mark in image.lower()), "cuda")


def _on(platform: str, command: EngineCommand) -> EngineCommand:
    """Returns the command on the image's platform; where that tells none, on that of its variables and options."""
    if platform != "cuda":
        return replace(command, platform=platform)
    variables = (match.lastgroup for name in command.env if (match := _PLATFORM_OF_VARIABLE.match(name)))
    given = [str(value).lower() for name, value in command.args.items() if name in _TELLING]
    given += _DEVICE_OF_BUFFERS.findall(" ".join(f"{name} {value}" for name, value in command.args.items()))
    values = (_PLATFORM_OF_VALUE.get(value) for value in given)
    return replace(command, platform=next((told for told in (*variables, *values) if told), command.platform))


def _with_words(script: str, words: Sequence[str]) -> str:
    """Returns a shell's script with the words behind it in place of `"$@"`; if there are none, others will add them."""
    return re.sub(r'"?\$[@*]"?', lambda _: shlex.join(words), script) if words else script


def _filled(word: str, env: Mapping[str, str]) -> str:
    """Returns a word with those variables in place that the line itself has set."""
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[2] or match[3], match[0]), word)


def _all_filled(words: Iterable[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yields words with their variables in place; one that holds options, `$ARGS`, is split as a shell does."""
    for word in words:
        filled = _filled(word, env)
        yield from _split(filled) if filled.startswith("-") and filled != word else [filled]


def _command(engine: str, version: str | None, words: Sequence[str], env: Mapping[str, str]) -> EngineCommand:
    args: dict[str, Any] = {}
    bare: list[str] = []
    for name, values in _options(engine, _until_the_end(_all_filled(words, env))):
        if name is None:
            bare += values
        else:
            args.pop(name, None)  # the last one counts, also where it takes back another: `--x --no-x`
            args |= _members(name, _value(values))
    config = args.pop("config", None)
    unknown = frozenset(name for name, value in args.items() if isinstance(value, str | Mapping) and _open(str(value)))
    named = next((args.pop(name) for name in ("model", "model_path") if args.get(name)), None)
    model = named or next(iter(bare), None)
    more = any(_open(word) for word in (bare if named else bare[1:])) or any(word in _ALL_WORDS for word in bare)
    told = None if model is None or _open(str(model)) else str(model)
    args = {name: value for name, value in args.items() if name not in unknown}
    unknown -= {"model", "model_path"}
    file = None if config is None else str(config)
    return EngineCommand(engine, version, told, args, unknown, dict(env), more=more, config=file)


def _members(name: str, value: Any) -> dict[str, Any]:
    """Returns an option with its value. JSON of which variables hold a part becomes an option for each member, as
    `--speculative-config.method` is one: the others are told.
    """
    if isinstance(value, str) and value.startswith("{") and _open(value):
        with suppress(ValueError):
            return {f"{name}.{member}": inner for member, inner in json.loads(value).items()}
    return {name: value}


def _until_the_end(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if _END.match(word):
            return
        if word.strip() and word != "serve":
            yield word


def _options(engine: str, words: Iterator[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yields each option with its values, and words that belong to none."""
    name: str | None = None
    values: list[str] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            if name is not None:
                yield name, values
            name, equals, value = word.lstrip("-").partition("=")
            name = _full(engine, name)
            values = [value] if equals else []
            if equals or _is_switch(name):
                yield name, values
                name = None
        elif name is None or (values and name not in _SEVERAL):
            if name is not None:
                yield name, values
                name = None
            yield None, [word]
        else:
            values.append(word)
    if name is not None:
        yield name, values


def _full(engine: str, name: str) -> str:
    head, dot, path = name.partition(".")
    head = head.replace("-", "_")
    known = _KNOWN_OPTION[engine](head)
    return (known or head) + dot + path


def _is_switch(name: str) -> bool:
    return "." not in name and name not in _VALUED and bool(_SWITCH.match(name))


def _value(values: Sequence[str]) -> Any:
    if not values:
        return True
    if len(values) > 1:
        return list(values)
    text = values[0]
    if _NUMBER.match(text):
        return float(text) if "." in text else int(text)
    return text


def _open(text: str) -> bool:
    """Returns True if a value holds what only a shell, a template or a reader could fill in: `$NAME`, `<name>`."""
    return "$" in text or "{{" in text or "`" in text or bool(re.match(r"<[^>]*>$", text))
