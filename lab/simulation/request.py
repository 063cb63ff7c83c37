"""One simulated request, and what drafters accept of such requests over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from lab.sim.kv_cache import Part
from policies import Candidate, RequestFeatures
from serve.routing.prefix_placement import BLOCK_TOKENS

TOOLS, PROSE, JSON = "tools", "prose", "json"
KINDS: Mapping[str, Mapping[str, object]] = {
    TOOLS: {"tools": 1, "tool_choice": "auto"},
    PROSE: {},
    JSON: {"response_format": "json_schema"},
}

# Chance that a drafted token is accepted if those before it were, by position. Tokens per step at three drafts: 3.7 of
# tool calls (BFCL), 3.3 of JSON (HumanEval) and 2.5 of prose (between MTBench and CEval), on the card of
# Kimi-K2.5-eagle3.
ACCEPTANCE: Mapping[str, Sequence[float]] = {
    TOOLS: (0.96, 0.95, 0.92),
    JSON: (0.89, 0.87, 0.85),
    PROSE: (0.75, 0.66, 0.52),
}


@dataclass(eq=False, slots=True)
class SimRequest:
    """One request.

    Attributes:
        at_s: When it arrives.
        session: Its conversation.
        kind: `tools`, `prose` or `json`.
        prompt_tokens: Tokens of its prompt.
        output_tokens: Tokens of its answer.
        prefix: Name and tokens of a text with which its prompt begins and which others share.
        features: Its facts for the policy; of its kind, unless it was recorded.
        parts: Of its prompt, if they were recorded; else its prefix and its session make them.
        candidate: Where it went.
        first_s: When its first token was there.
        end_s: When it was complete.
        length: Tokens that it got a step.
    """

    at_s: float
    session: str
    kind: str
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[str, int] = ("", 0)
    features: RequestFeatures | None = None
    parts: tuple[Part, ...] = ()
    candidate: Candidate | None = None
    first_s: float = 0.0
    end_s: float = 0.0
    length: float = 1.0

    @property
    def prompt(self) -> tuple[Part, ...]:
        """The parts of its prompt; the conversation's own part grows from turn to turn."""
        if self.parts:
            return self.parts
        name, shared = self.prefix
        own = Part(("session", self.session), max(0, self.prompt_tokens - shared))
        return (Part(("prefix", name), min(shared, self.prompt_tokens)), own) if shared else (own,)

    @property
    def answer(self) -> Part:
        """Its answer, by which the conversation grows."""
        own = self.prompt[-1]
        return Part(own.key, own.tokens + self.output_tokens)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Its prompt in blocks, as the gateway's prefix index cuts it."""
        return _blocks(self.prompt)

    def features_for(self, model: str) -> RequestFeatures:
        """Returns its facts for the policy."""
        if self.features is not None:
            return self.features
        return RequestFeatures(model, stream=True, conversation_key=self.session, **KINDS[self.kind])  # type: ignore[arg-type]


@lru_cache(maxsize=16_384)  # a plan plays the same prompts many times
def _blocks(parts: tuple[Part, ...]) -> tuple[int, ...]:
    return tuple(hash((part.key, place)) for part in parts for place in range(part.tokens // BLOCK_TOKENS))


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter's rate of acceptance, by kind of request and time.

    Attributes:
        profiles: (from when in seconds, chance of acceptance by kind and position), in order of time.
    """

    profiles: Sequence[tuple[float, Mapping[str, Sequence[float]]]] = field(default=((0.0, ACCEPTANCE),))

    def length(self, kind: str, drafts: int, at_s: float) -> float:
        """Returns the tokens per step of a request that begins then.

        Args:
            kind: Of the request.
            drafts: Draft length; 0 without speculation.
            at_s: When.
        """
        place = max(0, bisect_right(self.profiles, at_s, key=lambda profile: profile[0]) - 1)
        profile = self.profiles[place][1][kind]
        length, reached = 1.0, 1.0
        for position in range(drafts):
            reached *= profile[min(position, len(profile) - 1)]
            length += reached
        return length
