"""Finds in a second what an engine would report after minutes: options that vLLM lacks, folders that are not there."""

import importlib.util
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from policies.vllm_options import KNOWN, full_names
from serve.config.gateway import GatewayConfig

_ROOT = Path(__file__).parents[2]  # paths into a checkout are relative to it, wherever a replica works
# Where vLLM declares its options; a newer one has some that our table lacks.
_SOURCES = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/*/cli_args.py", "config/*.py")


def unknown_options(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, message) for each engine argument that no vLLM is known to have."""
    for name, model, pool, _ in config.each_pool("vllm"):
        for option in full_names(model.engine_args_of(pool)):
            if option not in KNOWN and not _installed_vllm_has(option):
                written = option.replace("_", "-")
                near = get_close_matches(option, KNOWN, n=1)
                hint = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
                yield name, pool, f"vLLM has no engine argument {written!r}{hint}"


def missing_folders(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, message) for each folder of a model or drafter that is not on this machine.

    A text that may be a name on a model hub, such as `org/model`, is left to vLLM.
    """
    for name, model, pool, _ in config.each_pool("vllm"):
        for what, path in zip(("model", "drafter"), model.weights_of(pool), strict=True):
            if isinstance(path, str) and _is_folder(path) and not (Path(path).exists() or (_ROOT / path).exists()):
                yield name, pool, f"the folder of its {what}, {path}, is not on this machine"


def _is_folder(path: str) -> bool:
    """Returns True if a text is a path rather than a name on a model hub."""
    first, *rest = Path(path).parts or ("",)
    return (
        Path(path).is_absolute()
        or first in ("..", "~")
        or path.startswith("./")
        or len(rest) > 1
        or (bool(rest) and ((_ROOT / first).is_dir() or Path(first).is_dir()))
    )


def _installed_vllm_has(option: str) -> bool:
    """Returns True if the sources of the vLLM that is installed here, if any, name an option; it is not imported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return False
    folder = Path(spec.submodule_search_locations[0])
    word = re.compile(rf"\b{re.escape(option)}\b|--{re.escape(option.replace('_', '-'))}\b")
    files = (file for pattern in _SOURCES for file in folder.glob(pattern))
    return any(word.search(file.read_text(encoding="utf-8", errors="replace")) for file in files)
