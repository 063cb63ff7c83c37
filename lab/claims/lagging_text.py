"""Stop strings: vLLM's parsers get token ids at once, and the text behind them by the stop buffer."""

from collections.abc import Iterator
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.sampling_params import SamplingParams

from lab.claims.formats import FORMATS, TOOL, Tokenizer, assembled, folded, written
from lab.claims.reasoning_parsers import CONTENT, THINKING, streamed_thoughts
from lab.claims.signature import accepted

_PAIRS = (("kimi_k2", "kimi_k2"), ("qwen3_coder", "qwen3"), ("glm47", "glm45"), ("deepseek_v31", "deepseek_r1"),
          ("hermes", "deepseek_r1"))  # fmt: skip
_REASONING = ("kimi_k2", "qwen3", "deepseek_r1", "glm45", "step3")  # alone, where nothing joins the two yet
_LENGTHS = range(2, 14)  # of the stop string
_CALLS = [("get_weather", {"city": "Bern", "unit": "celsius"})]


def broken_by_a_stop_string() -> Iterator[bool]:
    """Yields for parsers and lengths of a stop string whether a stream is wrong that is right without the string.

    Steps hold one token, so that drafts are not what breaks it.
    """
    joined = _join()
    if joined is None:
        for name in _REASONING:
            for length in _LENGTHS:
                lag = SamplingParams(stop=["x" * length]).output_text_buffer_length
                yield _thoughts(name, lag) != (THINKING, CONTENT) == _thoughts(name, 0)
        return
    for tools, reasoning in _PAIRS:
        sound = _parsed(joined, tools, reasoning, 0) == (THINKING, _CALLS)
        for length in _LENGTHS if sound else ():
            lag = SamplingParams(stop=["x" * length]).output_text_buffer_length
            yield _parsed(joined, tools, reasoning, lag) != (THINKING, _CALLS)


def _join() -> Any:
    """Returns the manager that joins parsers of tools and of reasoning; None in versions whose server joins them."""
    try:
        from vllm.parser import ParserManager
        from vllm.parser.abstract_parser import DelegatingParser
    except ImportError:
        return None
    return ParserManager if hasattr(DelegatingParser, "parse_delta") else None


def _thoughts(name: str, lag: int) -> tuple[str, str]:
    return streamed_thoughts(name, lambda: 1, lag)


def _parsed(manager: Any, tools: str, reasoning: str, lag: int) -> tuple[str, Any] | None:
    """Returns the reasoning and the calls that a client puts together; None if the stream fails."""
    tokenizer: Any = Tokenizer(FORMATS[tools].markers)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=[TOOL])
    options = accepted(manager.get_parser, {"enable_auto_tools": True, "tokenizer": tokenizer})
    parser = manager.get_parser(tools, reasoning, **options)(tokenizer, request.tools)
    text = f"{THINKING}</think>{written(FORMATS[tools], _CALLS)}"
    tokens = list(tokenizer.tokens(text))
    seen = shown = 0
    thinking = ""
    calls: dict[int, list[str]] = {}
    for number, (token, part) in enumerate(tokens):
        finished = number == len(tokens) - 1
        seen += len(part)
        visible = len(text) if finished else max(shown, seen - lag)
        options = accepted(parser.parse_delta, {"prompt_token_ids": [], "finished": finished})
        try:
            delta = parser.parse_delta(text[shown:visible], [token], request, **options)
        except Exception:  # noqa: BLE001 - however a parser fails, the client's stream ends broken
            return None
        shown = visible
        thinking += (delta and delta.reasoning) or ""
        folded(calls, (delta and delta.tool_calls) or ())
    whole = assembled(calls)
    return None if whole is None else (thinking, whole)
