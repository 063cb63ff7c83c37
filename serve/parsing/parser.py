"""The parsers by name, for a stream and for a complete text. Which one a model gets, `families.py` says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from serve.parsing.bare import Bare
from serve.parsing.cohere import CohereCommand
from serve.parsing.deepseek_dsml import DeepSeekV4, DeepSeekV32, DeepSeekV41
from serve.parsing.deepseek_v3 import DeepSeekV3, DeepSeekV31
from serve.parsing.events import Event, Fault, ParsedMessage, Reasoning, Violation, fold
from serve.parsing.gemma4 import Gemma4
from serve.parsing.glm import Glm, HyV3, HyV4, Laguna, Ling3, LongCat
from serve.parsing.harmony import Harmony
from serve.parsing.hermes import Hermes
from serve.parsing.kimi_k2 import KimiK2
from serve.parsing.kimi_k3 import KimiK3
from serve.parsing.minimax_m2 import MiniMaxM2
from serve.parsing.minimax_m3 import MiniMaxM3
from serve.parsing.mistral import Mistral
from serve.parsing.prose import Prose
from serve.parsing.qwen3_coder import MiMo, NemotronV3, Qwen3Coder, SeedOss, Step3p5, Step5
from serve.parsing.tools import Tools

GRAMMARS: dict[str, type[Prose]] = {
    "kimi_k2": KimiK2,
    "qwen3_coder": Qwen3Coder,
    "hermes": Hermes,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeekV31,
    "deepseek_v32": DeepSeekV32,
    "deepseek_v4": DeepSeekV4,
    "deepseek_v41": DeepSeekV41,
    "glm47": Glm,
    "ling3": Ling3,
    "laguna": Laguna,
    "laguna_s": Laguna,
    "longcat": LongCat,
    "hy_v3": HyV3,
    "hy_v4": HyV4,
    "step3p5": Step3p5,
    "step5": Step5,
    "mimo": MiMo,
    "nemotron_v3": NemotronV3,
    "seed_oss": SeedOss,
    "minimax_m2": MiniMaxM2,
    "minimax_m3": MiniMaxM3,
    "kimi_k3": KimiK3,
    "harmony": Harmony,
    "mistral": Mistral,
    "gemma4": Gemma4,
    "cohere_command3": CohereCommand,
    "cohere_command4": CohereCommand,
    "bare": Bare,
}


class StreamParser:
    """Parses one output of a model as it arrives, however it is cut.

    Args:
        grammar: One of `GRAMMARS`.
        tools: The tools of the request, as OpenAI's API has them.
        thinking: True if the prompt left the model inside `<think>`, so that the output starts in reasoning.
        calls: False to leave tool calls in the content and only split reasoning off.
        marker_ids: Text of each marker that is one token, by id; by default those of the model family's own tokenizer.
        behind_reasoning: True if the text begins after reasoning that `ReasoningSplit` has taken off.

    Raises:
        ValueError: The grammar is unknown.
    """

    def __init__(
        self,
        grammar: str,
        tools: Iterable[Mapping[str, Any]] | None = None,
        thinking: bool = False,
        *,
        calls: bool = True,
        marker_ids: Mapping[int, str] | None = None,
        behind_reasoning: bool = False,
    ) -> None:
        if grammar not in GRAMMARS:
            raise ValueError(f"Unknown grammar {grammar!r}. Known: {', '.join(sorted(GRAMMARS))}.")
        machine = GRAMMARS[grammar](Tools(tools or ()), thinking, calls, marker_ids)
        if behind_reasoning:
            machine.resume()
        self.machine = machine
        self.feed = machine.feed
        self.finish = machine.finish


def parse(
    text: str,
    grammar: str,
    tools: Iterable[Mapping[str, Any]] | None = None,
    thinking: bool = False,
    *,
    calls: bool = True,
    token_ids: Sequence[int] = (),
) -> ParsedMessage:
    """Returns the message in a complete output; arguments are those of `StreamParser`. The output's tokens, if given,
    are evidence of which markers are real.

    Raises:
        ValueError: The grammar is unknown.
    """
    parser = StreamParser(grammar, tools, thinking, calls=calls)
    events: list[Event] = parser.feed(text, token_ids)
    events += parser.finish()
    return fold(events)


class Parts(NamedTuple):
    reasoning: str
    rest: str  # the text after reasoning, from the step on that ends it
    violations: tuple[Violation, ...]


class ReasoningSplit:
    """One stream's reasoning. Arguments are those of `StreamParser`; without `thinking`, there is reasoning only if the
    output opens it itself.

    Attributes:
        ended: True once reasoning is over, or if there is none.
    """

    def __init__(self, grammar: str, thinking: bool, marker_ids: Mapping[int, str] | None = None) -> None:
        self.ended = False
        self._parser = StreamParser(grammar, thinking=thinking, marker_ids=marker_ids)
        self._opening = GRAMMARS[grammar].thinking_tags[0]
        self._head = self._opening if thinking else ""
        self._pieces: list[str] = []
        self._length = 0

    def feed(self, text: str, token_ids: Sequence[int] = ()) -> Parts:
        if self.ended:
            return Parts("", text, ())
        self._pieces.append(text)
        self._length += len(text)
        if self._head != self._opening:
            self._head = (self._head + (text if self._head else text.lstrip()))[: len(self._opening)]
            if not self._opening.startswith(self._head):
                self.ended = True
                return Parts("", "".join(self._pieces), ())
        return self._parts(self._parser.feed(text, token_ids))

    def finish(self) -> Parts:
        if self.ended:
            return Parts("", "", ())
        if self._head != self._opening:
            self.ended = True
            return Parts("", "".join(self._pieces), ())
        return self._parts(self._parser.finish())

    def _parts(self, events: list[Event]) -> Parts:
        machine = self._parser.machine
        end = machine.reasoning_end
        reasoning = "".join(event.text for event in events[: machine.reasoning_events] if isinstance(event, Reasoning))
        self.ended = end is not None
        faults = [event.violation for event in events if isinstance(event, Fault)]
        before = tuple(fault for fault in faults if end is None or fault.position < end)
        return Parts(reasoning, "" if end is None else self._text_from(end), before)

    def _text_from(self, place: int) -> str:
        """Returns the text from a place on, which is not far back."""
        start = self._length
        kept = []
        while start > place:
            piece = self._pieces.pop()
            start -= len(piece)
            kept.append(piece)
        return "".join(reversed(kept))[place - start :]
