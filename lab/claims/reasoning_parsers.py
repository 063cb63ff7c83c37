"""vLLM's own reasoning parsers, fed several tokens at a time as a speculating engine does."""

from collections.abc import Iterator
from random import Random
from typing import Any

from vllm.reasoning import ReasoningParserManager

from lab.claims.tool_parsers import MOST_TOKENS, Tokenizer

_CHUNKINGS = 60
_THINKING, _CONTENT = "Bern is a city.", "It is 7 degrees."


def broken_thoughts(name: str, *, most: int = MOST_TOKENS) -> Iterator[bool]:
    """Yields for one answer, cut at random, whether thinking or content of the stream differ from what was written.

    Args:
        name: vLLM's name of the parser.
        most: Tokens of a step, at most.
    """
    rng = Random(name)
    for _ in range(_CHUNKINGS):
        yield _streamed(name, f"<think>{_THINKING}</think>{_CONTENT}", rng, most) != (_THINKING, _CONTENT)


def _streamed(name: str, text: str, rng: Random, most: int) -> tuple[str, str]:
    """Returns the thinking and the content that a client puts together from a stream."""
    tokenizer: Any = Tokenizer(())
    parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
    ids, texts = (list(part) for part in zip(*tokenizer.tokens(text), strict=True))
    place, thinking, content = 0, "", ""
    while place < len(ids):
        end = place + rng.randint(1, most)
        delta = parser.extract_reasoning_streaming(
            "".join(texts[:place]), "".join(texts[:end]), "".join(texts[place:end]),
            ids[:place], ids[:end], ids[place:end],
        )  # fmt: skip
        thinking += (delta and delta.reasoning) or ""
        content += (delta and delta.content) or ""
        place = end
    return thinking, content
