"""The part that all grammars share: reasoning, the marks around it, and content."""

from __future__ import annotations

from serve.parsing.machine import Machine, Row, State


class Prose(Machine):
    """Actions on prose. `<think>` opens reasoning only at the start of an output, where models put it."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.open_thought = self.thinking  # a `</think>` is still to come, maybe behind a call
        self.thought = self.thinking

    def resume(self) -> None:
        """What follows stood behind reasoning, which somebody else has split off."""
        self.open_thought = self.thought = True
        self.out.boundary()

    def reason(self, raw: str) -> None:
        self.out.reasoning(raw)

    def write(self, raw: str) -> None:
        self.out.content(raw)

    def think(self, raw: str) -> State | None:
        """`<think>` in content."""
        if self.out.wrote_content or self.out.calls or self.thought:
            self.out.content(raw)
            return None
        self.out.boundary()
        self.open_thought = self.thought = True
        return State.REASONING

    def think_again(self, raw: str) -> None:
        """`<think>` in reasoning: the template's own opening, or a word of the model's."""
        if self.out.wrote_reasoning:
            self.out.reasoning(raw)

    def stop_thinking(self, raw: str) -> State:
        """`</think>` in reasoning."""
        self.out.end_reasoning(keep_space=False)
        self.reasoning_end = self.position + len(raw)
        self.open_thought = False
        return State.CONTENT

    def late_stop(self, raw: str) -> None:
        """`</think>` in content: the end of reasoning that a call had ended before, a second one, or a word."""
        if not self.thought:
            self.out.content(raw)
            return
        if not self.open_thought:
            self.out.violation("stray_marker", self.position, raw)
        self.open_thought = False

    def cut_thinking(self, raw: str) -> State:
        """A call ends reasoning; without calls to parse, its text is content."""
        self.out.end_reasoning(keep_space=True)
        self.reasoning_end = self.position
        self.out.content(raw)
        return State.CONTENT


THINK = {"<think>": "think", "</think>": "end_think"}
REASONING_MARKS = {"think": Prose.think_again, "end_think": Prose.stop_thinking}
CONTENT_MARKS = {"think": Prose.think, "end_think": Prose.late_stop}
PLAIN_CONTENT = Row(text=Prose.write, on=CONTENT_MARKS, prose=True)
