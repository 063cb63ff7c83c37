"""The token that ends DeepSeek's turns, and a second span of reasoning: what V3 and DSML share beside calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from serve.parsing.machine import Action, Row, State
from serve.parsing.prose import Prose

END_OF_TURN = "<｜end▁of▁sentence｜>"  # an engine that keeps special tokens in the text may leave it there


class Turns(Prose):
    """Prose that may end in the token that ends a turn."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._stopped: list[str] = []
        self._stopped_in = State.CONTENT
        self._stopped_at = 0

    def think(self, raw: str) -> State | None:
        """Takes `<think>` in content: these models may think again after they have thought."""
        again = self.thought and not self.open_thought
        if not again and (self.out.wrote_content or self.out.calls or self.thought):
            self.write(raw)
            return None
        self.leave_content()
        self.out.boundary()
        self.open_thought = True
        self.thought = True
        return State.REASONING

    def leave_content(self) -> None:
        """Settles what a grammar holds back of content, where reasoning begins again."""

    def think_again(self, raw: str) -> None:
        """Takes `<think>` in reasoning; blanks in front of it are no reasoning."""
        if self.out.wrote_reasoning:
            self.out.reasoning(raw)
        else:
            self.out.boundary()

    def stop(self, raw: str) -> State:
        """Takes the token, which is text after all if more than blanks follow."""
        self._stopped = [raw]
        self._stopped_in = self.state
        self._stopped_at = self.position
        return State.STOPPED

    def after_stop(self, raw: str) -> State | None:
        self._stopped.append(raw)
        return None if raw.isspace() or raw == END_OF_TURN else self._go_on()

    def _go_on(self) -> State:
        """Hands the token, and what follows it, to the state that it came in."""
        *held, raw = self._stopped
        self._stopped = []
        origin = self._stopped_in
        position, self.position = self.position, self._stopped_at
        self._rows[origin].text(self, "".join(held))
        self.position = position
        return self.dispatch(raw, origin)

    def end_stop(self, raw: str) -> State:
        return self._stopped_in


def with_turns(table: Mapping[State, Row], also: Mapping[str, Action] | None = None) -> Mapping[State, Row]:
    """Returns a grammar's table whose prose knows the token that ends a turn, further spans of reasoning, and what to
    do with the markers in `also`.
    """
    reasoning = {"think": Turns.think_again, "stop": Turns.stop, **(also or {})}
    content = {"think": Turns.think, "stop": Turns.stop, **(also or {})}
    rows = {
        state: replace(row, on={**row.on, **(reasoning if state is State.REASONING else content)}) if row.prose else row
        for state, row in table.items()
    }
    return {**rows, State.STOPPED: Row(text=Turns.after_stop, end=Turns.end_stop)}
