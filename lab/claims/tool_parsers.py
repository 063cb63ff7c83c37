"""vLLM's own tool parsers, fed several tokens at a time as a speculating engine does."""

import inspect
from collections.abc import Iterator
from random import Random

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

from lab.claims.formats import (
    ANSWERS,
    CHUNKINGS,
    FORMATS,
    MOST_TOKENS,
    TOOL,
    Call,
    Tokenizer,
    assembled,
    folded,
    written,
)


def broken_calls(name: str, *, prefix: str | None = None, most: int = MOST_TOKENS) -> Iterator[bool]:
    """Yields for some answers, each cut at random, whether the calls of the stream differ from what the model wrote.

    Args:
        name: vLLM's name of the parser.
        prefix: What the model writes before the first call; the format's own if not given.
        most: Tokens of a step, at most.
    """
    rng = Random(name)
    for calls in ANSWERS:
        text = written(FORMATS[name], calls, prefix)
        for _ in range(CHUNKINGS):
            yield _streamed(name, text, rng, most) != calls


def _streamed(name: str, text: str, rng: Random, most: int) -> list[Call] | None:
    """Returns the calls that a client puts together from a stream; None if it can't, or the parser fails."""
    tokenizer = Tokenizer(FORMATS[name].markers)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=[TOOL])
    make = ToolParserManager.get_tool_parser(name)
    takes_tools = len(inspect.signature(make.__init__).parameters) > 2
    parser = make(tokenizer, request.tools) if takes_tools else make(tokenizer)
    parser.adjust_request(request)
    tokens, place = list(tokenizer.tokens(text)), 0
    ids, texts = [list(part) for part in zip(*tokens, strict=True)]
    calls: dict[int, list[str]] = {}
    while place < len(tokens):
        end = place + rng.randint(1, most)
        try:
            delta = parser.extract_tool_calls_streaming(
                previous_text="".join(texts[:place]), current_text="".join(texts[:end]),
                delta_text="".join(texts[place:end]), previous_token_ids=ids[:place], current_token_ids=ids[:end],
                delta_token_ids=ids[place:end], request=request,
            )  # fmt: skip
        except Exception:  # noqa: BLE001 - however a parser fails, the client's stream ends broken
            return None
        folded(calls, (delta.tool_calls or ()) if delta else ())
        place = end
    return assembled(calls)
