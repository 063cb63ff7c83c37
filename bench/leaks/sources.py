"""Real files that mention markers, read where they are installed: parsers, chat templates, tests, documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_OWN = ("serve/parsing", "serve/engine", "serve/guard/core", "docs/explanation", "docs/adr", "tests/unit/parsing")
_PACKAGES = ("vllm", "transformers", "mistral_common", "openai", "openai_harmony", "xgrammar", "tokenizers", "sglang")
_KINDS = frozenset({".py", ".jinja", ".md", ".rst", ".txt", ".json", ".lark", ".js", ".ts"})
_MARKER = re.compile(
    r"</?tool_call>|<function=|</function>|<parameter=|</?think>|<\|tool_call|<\|im_(?:start|end)\||<\|endoftext\|"
    r"|<｜|｜DSML｜|\]<\]minimax|<minimax:|</?arg_(?:key|value)>|<tool_calls|<tool_sep|<invoke "
    r"|<\|(?:open|close|channel|start)\|>|\[TOOL_CALLS\]|functools\[|to=functions\.|<\|python_tag|<seed:|<function_calls?>|<\|START_ACTION"
)
_MOST_BYTES = 400_000


def _files() -> Iterator[Path]:
    for folder in _OWN:
        yield from sorted((_ROOT / folder).rglob("*"))
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(folder).rglob("*"))


@cache
def files() -> tuple[tuple[str, str], ...]:
    """Returns name and text of every file that mentions a marker."""
    found = []
    for path in _files():
        if path.suffix in _KINDS and path.is_file() and path.stat().st_size <= _MOST_BYTES:
            text = path.read_text("utf-8", "replace")
            if _MARKER.search(text) and "\ufffd" not in text and "\0" not in text:
                found.append((path.name, text))
    return tuple(found)


@cache
def excerpts(characters: int = 1500) -> tuple[tuple[str, str], ...]:
    """Returns name and text of whole lines around each marker, none twice.

    Args:
        characters: About the length of each.
    """
    found: dict[str, str] = {}
    for name, text in files():
        after = 0
        for match in _MARKER.finditer(text):
            if match.start() < after:
                continue
            start = text.rfind("\n", 0, max(after, match.start() - characters // 2)) + 1
            end = text.find("\n", match.end() + characters // 2)
            after = len(text) if end < 0 else end
            found.setdefault(text[max(start, after - 3 * characters) : after], name)
    return tuple((name, text) for text, name in found.items())


@cache
def comments() -> tuple[str, ...]:
    """Returns single lines of prose that mention a marker outside of quotation marks: comments of real files."""
    lines: dict[str, None] = {}
    for name, text in files():
        if name.endswith(".py"):
            for line in text.splitlines():
                stripped = line.strip()
                if stripped.startswith("# ") and _MARKER.search(stripped):
                    lines[stripped.lstrip("# ")] = None
    return tuple(lines)
