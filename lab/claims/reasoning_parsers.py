"""vLLM's own reasoning parsers, fed several tokens at a time as a speculating engine does."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from vllm.reasoning import ReasoningParserManager

from lab.claims.formats import CHUNKINGS, MOST_TOKENS, Tokenizer

THINKING, CONTENT = "Bern is a city.", "It is 7 degrees."


def broken_thoughts(name: str, *, most: int = MOST_TOKENS) -> Iterator[bool]:
    """Yields for one answer, cut at random, whether thinking or content of the stream differ from what was written.

    Args:
        name: vLLM's name of the parser.
        most: Tokens of a step, at most.
    """
    rng = Random(name)
    for _ in range(CHUNKINGS):
        yield streamed_thoughts(name, lambda: rng.randint(1, most)) != (THINKING, CONTENT)


def streamed_thoughts(name: str, step: Callable[[], int], lag: int = 0) -> tuple[str, str]:
    """Returns the thinking and the content that a client puts together from a stream.

    Args:
        name: vLLM's name of the parser.
        step: Returns the tokens of a step.
        lag: Characters by which the text is behind the ids, until the end.
    """
    tokenizer: Any = Tokenizer(())
    parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer)
    text = f"<think>{THINKING}</think>{CONTENT}"
    ids, texts = (list(part) for part in zip(*tokenizer.tokens(text), strict=True))
    place, shown, thinking, content = 0, 0, "", ""
    while place < len(ids):
        end = place + step()
        visible = len(text) if end >= len(ids) else max(shown, len("".join(texts[:end])) - lag)
        delta = parser.extract_reasoning_streaming(
            text[:shown], text[:visible], text[shown:visible], ids[:place], ids[:end], ids[place:end]
        )
        thinking += (delta and delta.reasoning) or ""
        content += (delta and delta.content) or ""
        place, shown = end, visible
    return thinking, content
