"""One simulated engine in virtual time, from event to event.

All running sequences share the same steps, so a request ends a fixed number of steps after it began. The engine counts
steps and jumps from one end to the next: an hour of traffic costs no more than its requests. Seats, queue, prefill,
prefix cache and step times are those of the simulated engine that serves HTTP (`lab.sim.batch`).
"""

import heapq
import math

from lab.sim.batch import Batch, SimSequence
from lab.sim.economics import Economics
from lab.simulation.request import SimRequest

_ROUNDING = 1e-6  # of a step: sums of floats


class SimEngine:
    """One replica.

    Args:
        economics: What its work costs.
        drafts: Draft length; 0 without speculation.
        seats: Sequences that run at the same time.

    Attributes:
        batch: What runs and what waits.
        next_end_s: When the next request ends if none comes before; infinity if none runs.
    """

    def __init__(self, economics: Economics, drafts: int, seats: int) -> None:
        self.drafts = drafts
        self.batch = Batch(economics, drafts, seats)
        self.next_end_s = math.inf
        self._requests: dict[SimSequence, SimRequest] = {}
        self._ends: list[tuple[float, int, SimSequence]] = []
        self._steps = 0.0
        self._at_s = 0.0
        self._busy_until_s = 0.0
        self._number = 0

    @property
    def requests(self) -> int:
        """Requests that run or wait here."""
        return len(self._requests)

    def submit(self, request: SimRequest, now_s: float) -> None:
        """Takes a request, whose `length` says how many tokens it gets a step."""
        self._advance(now_s)
        sequence = SimSequence(request.prompt, request.answer)
        self._requests[sequence] = request
        self.batch.add(sequence)
        self._admit()

    def finish(self, now_s: float) -> SimRequest:
        """Ends the request that is due now and returns it; those that wait take its seat."""
        self._advance(now_s)
        steps, _, sequence = heapq.heappop(self._ends)
        self._steps = max(self._steps, steps)
        self.batch.remove(sequence)
        request = self._requests.pop(sequence)
        request.end_s = now_s
        self._admit()
        return request

    def _advance(self, now_s: float) -> None:
        if self.batch.running:
            self._steps += max(0.0, now_s - max(self._at_s, self._busy_until_s)) / self.batch.step_s
        else:
            self._steps = math.ceil(self._steps)  # an idle engine begins a step at once
        self._at_s = now_s

    def _admit(self) -> None:
        step = math.ceil(self._steps - _ROUNDING)  # the step that runs ends before prompts are computed
        begun = []
        for sequence, prefill_s in self.batch.admitted():
            self._busy_until_s = max(self._at_s, self._busy_until_s) + prefill_s
            self._number += 1
            request = self._requests[sequence]
            steps = max(1, math.ceil(request.output_tokens / request.length))
            heapq.heappush(self._ends, (step + steps, self._number, sequence))
            begun.append(request)
        for request in begun:
            request.first_s = self._busy_until_s + (step - self._steps + 1.0) * self.batch.step_s
        self._foresee()

    def _foresee(self) -> None:
        # Once for each request that begins or ends: a run asks all engines at every event.
        if not self._ends:
            self.next_end_s = math.inf
            return
        start_s = max(self._at_s, self._busy_until_s)
        self.next_end_s = start_s + max(self._ends[0][0] - self._steps, 0.0) * self.batch.step_s
