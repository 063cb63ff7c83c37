"""The sequences that a simulated engine runs and those that wait, without a clock: who is next, and what it costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab.sim.economics import Economics
from lab.sim.kv_cache import KvCache, Part
from policies.step_times import step_times


@dataclass(eq=False, slots=True)
class SimSequence:
    """One answer under way.

    Attributes:
        prompt: The parts of its prompt.
        answer: The answer as a part of the conversation's next prompt. If its key is that of the last part of the
            prompt, that part grows, and `tokens` is the length of both.
        cached: Tokens of the prompt that were cached, once it runs.
    """

    prompt: Sequence[Part]
    answer: Part
    cached: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(part.tokens for part in self.prompt)

    @property
    def parts(self) -> list[Part]:
        """The memory that it occupies in the end."""
        before = self.prompt[:-1] if self.prompt and self.prompt[-1].key == self.answer.key else self.prompt
        return [*before, self.answer]


class Batch:
    """The batch of one engine and its queue, first come, first served.

    Args:
        economics: What the work costs.
        drafts: Draft length; 0 without speculation.
        seats: Sequences that run at the same time.
        overcommit: As of `Economics`; 1 for whoever preempts nobody.

    Attributes:
        kv: The KV memory.
        waiting: Sequences without a seat.
    """

    def __init__(self, economics: Economics, drafts: int, seats: int, overcommit: float = 1.0) -> None:
        self.kv = KvCache(economics.kv_tokens, economics.kv_tokens * overcommit)
        self.waiting: deque[SimSequence] = deque()
        self.seats = seats
        self._prefill_tokens_per_s = economics.prefill_tokens_per_s
        self._step_s = step_times(economics.step_times, drafts, seats)
        self._running: set[SimSequence] = set()
        self._crowded = False  # somebody was preempted, and nobody has ended since

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def step_s(self) -> float:
        """Seconds of the next step."""
        return self._step_s[len(self._running)]

    def step_s_of(self, batch: int) -> float:
        """Returns the seconds of a step with so many sequences, at most as many as there are seats."""
        return self._step_s[batch]

    def add(self, sequence: SimSequence) -> None:
        """Puts a sequence into the queue."""
        self.waiting.append(sequence)

    def admitted(self) -> Iterator[tuple[SimSequence, float]]:
        """Gives free seats to those that wait; yields each, and the seconds until its prompt is computed."""
        while self.waiting and len(self._running) < self.seats and not (self._crowded and self._running):
            sequence = self.waiting[0]
            parts = sequence.parts
            if self._running and not self.kv.fits(parts):
                return
            self.waiting.popleft()
            self._running.add(sequence)
            tokens = sequence.prompt_tokens
            sequence.cached = self.kv.cached(sequence.prompt)
            self.kv.hold(parts, tokens, sequence.cached)
            yield sequence, (tokens - sequence.cached) / self._prefill_tokens_per_s

    def remove(self, sequence: SimSequence) -> None:
        """Takes out a sequence that has ended or was aborted, wherever it is."""
        if sequence in self._running:
            self._running.discard(sequence)
            self._crowded = False
            self.kv.release(sequence.parts)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def preempt(self, sequence: SimSequence) -> None:
        """Puts a running sequence back to the head of the queue, where it waits until another one has ended."""
        self._running.discard(sequence)
        self._crowded = True
        self.kv.preempted += 1
        self.kv.release(sequence.parts)
        self.waiting.appendleft(sequence)
