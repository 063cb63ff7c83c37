"""`python -m lab.claims.sglang_detectors`: SGLang's tool-call detectors on calls that come several tokens at a time.

Only the detectors are imported: what they need of GPUs and servers, and is not here, is stood in for.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import FrameType, ModuleType
from typing import Any

from lab.claims.formats import ANSWERS, CHUNKINGS, FORMATS, MOST_TOKENS, TOOL, Call, Tokenizer, assembled, written

# SGLang's name of a detector, and the format that it reads.
_FORMATS = {"deepseekv3": "deepseek_v3", "hermes": "hermes", "qwen25": "hermes"}
_LONG_STEP = 4 * MOST_TOKENS  # characters of sixteen real tokens: two calls may come at once
# By advisory the detectors, and the tokens of a step.
_CLAIMS = {
    "sglang-deepseekv3-detector": (("deepseekv3",), MOST_TOKENS),
    "sglang-detectors-multi-token": (("hermes", "qwen25"), _LONG_STEP),
}


_BARE = ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.function_call")


class _StandIn(ModuleType):
    """A module in which every name is a class without any content."""

    __path__: list[str] = []  # noqa: RUF012 - as the base class declares it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns:
    """Finds, after everybody else, modules that are not installed and that SGLang asks for; others can do without."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        frame: FrameType | None = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        asking = frame.f_globals.get("__name__", "") if frame else ""
        wanted = asking.startswith("sglang") and name.split(".")[0] != "sglang"
        return ModuleSpec(name, self, is_package=True) if wanted else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves the stand-in as it is."""


def _import_nothing_else() -> None:
    """Has SGLang's packages import none of what their own first lines would."""
    found = find_spec("sglang")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("sglang")
    for name in _BARE:
        package = ModuleType(name)
        package.__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.meta_path.append(_StandIns())


def _detectors() -> Any:
    return import_module("sglang.srt.function_call.function_call_parser")


def broken_calls(name: str, most: int) -> Iterator[bool]:
    """Yields for some answers, each cut at random, whether the calls of the stream differ from what the model wrote.

    Args:
        name: SGLang's name of the detector.
        most: Tokens of a step, at most.
    """
    rng = Random(name)
    for calls in ANSWERS:
        text = written(FORMATS[_FORMATS[name]], calls)
        for _ in range(CHUNKINGS):
            yield _streamed(name, text, rng, most) != calls


def _streamed(name: str, text: str, rng: Random, most: int) -> list[Call] | None:
    """Returns the calls that a client puts together from a stream; None if it can't, or the detector fails."""
    protocol: Any = import_module("sglang.srt.entrypoints.openai.protocol")
    parser = _detectors().FunctionCallParser([protocol.Tool.model_validate(TOOL)], name)
    parts = [part for _, part in Tokenizer(FORMATS[_FORMATS[name]].markers).tokens(text)]
    calls: dict[int, list[str]] = {}
    place = 0
    while place < len(parts):
        end = place + rng.randint(1, most)
        try:
            _, found = parser.parse_stream_chunk("".join(parts[place:end]))
        except Exception:  # noqa: BLE001 - however a detector fails, the client's stream ends broken
            return None
        for each in found:
            entry = calls.setdefault(each.tool_index, ["", ""])
            entry[0] += each.name or ""
            entry[1] += each.parameters or ""
        place = end
    return assembled(calls)


def try_all() -> dict[str, list[int] | str]:
    """Returns for each advisory `[cases that show it, cases]`, or a text that says why it could not be tried."""
    return {claim: _tried(names, most) for claim, (names, most) in _CLAIMS.items()}


def _tried(names: Sequence[str], most: int) -> list[int] | str:
    here = [name for name in names if name in _detectors().FunctionCallParser.ToolCallParserEnum]
    try:
        shown = [broken for name in here for broken in broken_calls(name, most)]
    except Exception as error:  # noqa: BLE001 - another version may have moved anything; that is reported, not hidden
        return f"{type(error).__name__}: {error}"[:200]
    return [sum(shown), len(shown)]


if __name__ == "__main__":
    _import_nothing_else()
    json.dump({"version": version("sglang"), "claims": try_all()}, sys.stdout)
