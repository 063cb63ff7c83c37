"""Reasoning, the marks around it, and content: the part that all grammars share; `Turns` is DeepSeek's alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from serve.parsing.machine import Action, Machine, Row, State


class Prose(Machine):
    """Actions on prose. `<think>` opens reasoning only in front of everything else, where models put it.

    Attributes:
        thinking_tags: The markers that open and end reasoning.
        call_openers: The markers that end reasoning because a call begins, and belong to the call themselves.
        structural_tag: vLLM's name of the structural tag (a grammar for calls) of the family; None if it has none.
    """

    thinking_tags: ClassVar[tuple[str, str]] = ("<think>", "</think>")
    call_openers: ClassVar[tuple[str, ...]] = ()
    structural_tag: ClassVar[str | None] = None

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.open_thought = self.thinking  # a `</think>` is still to come, maybe after a call
        self.thought = self.thinking
        self._thought_named = False  # by a `<think>` in the answer, so that its `</think>` is a word, too

    def resume(self) -> None:
        """Begins after reasoning that `ReasoningSplit` has taken off."""
        self.open_thought = True
        self.thought = True
        self.out.end_reasoning(keep_space=False)

    def think_on(self, draft: str, position: int) -> None:
        """Begins in the middle of reasoning, behind a text of it in which no marker counts. `position` is where it ends
        in the output.
        """
        self._go(State.REASONING)
        self.open_thought = self.thought = True
        self.position = position
        self.out.reasoning(draft)
        self.out.leave_code()  # a call may have fences of its own

    def reason(self, raw: str) -> None:
        self.out.reasoning(raw)

    def write(self, raw: str) -> None:
        self.out.content(raw)

    def think(self, raw: str) -> State | None:
        """Takes `<think>` in content: a thought, or another one right behind it; a word behind anything else."""
        if self.out.wrote_content or self.out.calls or self.open_thought:
            self._thought_named = True
            self.write(raw)
            return None
        self.out.boundary()
        self.open_thought = True
        self.thought = True
        return State.REASONING

    def think_again(self, raw: str) -> None:
        """Takes `<think>` in reasoning: the template's own opening, or a word of the model."""
        if self.out.wrote_reasoning:
            self.out.reasoning(raw)

    def stop_thinking(self, raw: str) -> State:
        """Takes `</think>` in reasoning."""
        self.out.end_reasoning(keep_space=False)
        self.reasoning_ends(self.position + len(raw))
        self.open_thought = False
        return State.CONTENT

    def late_stop(self, raw: str) -> None:
        """Takes `</think>` in content: the end of reasoning that a call has ended already, a second one, or a word."""
        if not self.thought or (self._thought_named and not self.open_thought):
            self._thought_named = False
            self.write(raw)
            return
        if not self.open_thought:
            self.out.violation("stray_marker", self.position, raw)
        self.open_thought = False

    def stray(self, raw: str) -> None:
        """Takes a marker where none belongs, or one too many."""
        self.out.violation("stray_marker", self.position, raw)

    def cut_thinking(self, raw: str) -> State:
        """Ends reasoning at a call whose text is content, because calls are not parsed."""
        self.out.end_reasoning(keep_space=True)
        self.reasoning_ends(self.position)
        self.out.content(raw)
        return State.CONTENT


THINK = {"<think>": "think", "</think>": "end_think"}


def reasoning_row(on: Mapping[str, Action]) -> Row:
    """Returns the row of reasoning in a grammar that does `on` with its own markers."""
    marks = {"think": Prose.think_again, "end_think": Prose.stop_thinking}
    return Row(text=Prose.reason, on={**marks, **on}, prose=True, calls=frozenset(on) - marks.keys())


def content_row(on: Mapping[str, Action]) -> Row:
    """Returns the row of content in a grammar that does `on` with its own markers."""
    marks = {"think": Prose.think, "end_think": Prose.late_stop}
    return Row(text=Prose.write, on={**marks, **on}, prose=True, calls=frozenset(on) - marks.keys())


def reasoning_table(*openings: str) -> Mapping[State, Row]:
    """Returns the table that splits reasoning off and leaves calls in the content.

    Args:
        openings: Kinds of the markers that open a call, and so end reasoning.
    """
    return {State.REASONING: reasoning_row(dict.fromkeys(openings, Prose.cut_thinking)), State.CONTENT: content_row({})}


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
