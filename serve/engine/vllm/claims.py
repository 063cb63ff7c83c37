"""Checks what advisories say about vLLM on the vLLM that is installed, as far as that takes no weights."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

_MESSAGES = [{"role": "user", "content": "hi"}]
_GUIDED = {
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
}


class Tally(NamedTuple):
    """In how many of how many cases the engine does what an advisory says."""

    holds: int
    cases: int


def check_claims() -> dict[str, Tally]:
    """Returns the result for each advisory that can be checked."""
    return {advisory: _tally(cases()) for advisory, cases in _CLAIMS.items()}


def _tally(results: Iterator[bool]) -> Tally:
    outcomes = list(results)
    return Tally(sum(outcomes), len(outcomes))


def _refusals() -> Iterator[bool]:
    """Yields for each set of sampling parameters whether an engine with a drafter treats it as the advisory says."""
    temperatures = (0.2, 1.0)
    refused: list[dict[str, Any]] = [
        *({"logit_bias": {5: bias}, "temperature": heat} for bias, heat in product((-100, 0, 1), (0.0, *temperatures))),
        *({"min_p": least, "temperature": heat} for least, heat in product((0.001, 0.05, 1.0), temperatures)),
    ]
    accepted: list[dict[str, Any]] = [
        {"min_p": 0.05, "temperature": 0.0},
        {"min_p": 0.0},
        {"logit_bias": {}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"bad_words": ["x"]},
    ]
    yield from (_is_refused(parameters) for parameters in refused)
    yield from (not _is_refused(parameters) for parameters in accepted)


def _is_refused(parameters: Mapping[str, Any]) -> bool:
    drafter = object()  # the check only asks if there is one
    try:
        SamplingParams(**parameters)._validate_spec_decode(drafter)
    except (ValueError, VLLMValidationError):
        return True
    return False


def _guided() -> Iterator[bool]:
    """Yields for each removed field whether a request that holds it is accepted and not constrained."""
    for name, value in _GUIDED.items():
        chat = ChatCompletionRequest.model_validate({"model": "m", "messages": _MESSAGES, name: value})
        text = CompletionRequest.model_validate({"model": "m", "prompt": "hi", name: value})
        yield from (request.to_sampling_params(8, {}).structured_outputs is None for request in (chat, text))


def _stop_strings() -> Iterator[bool]:
    """Yields for some stop strings whether text is held back by the longest of them, less one character."""
    for stop in (["\n"], ["END"], ["a", "</answer>"]):
        held = SamplingParams(stop=stop).output_text_buffer_length
        yield held == max(map(len, stop)) - 1
    yield SamplingParams(stop=["END"], include_stop_str_in_output=True).output_text_buffer_length == 0


_CLAIMS: Mapping[str, Callable[[], Iterator[bool]]] = {
    "sampling-refused-by-speculation": _refusals,
    "guided-fields-ignored": _guided,
    "stop-strings-shift-markers": _stop_strings,
}
