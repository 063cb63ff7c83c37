"""The grammar of Cohere's Command and North models: a list of calls, and the answer, each between two tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.hermes import Hermes
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State


class CohereCommand(Hermes):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}]<|END_ACTION|>`."""

    thinking_tags: ClassVar[tuple[str, str]] = ("<|START_THINKING|>", "<|END_THINKING|>")
    call_openers: ClassVar[tuple[str, ...]] = ("<|START_ACTION|>",)
    structural_tag: ClassVar[str | None] = None
    name_key: ClassVar[str] = "tool_name"
    members: ClassVar[frozenset[str]] = frozenset({"tool_call_id", "tool_name", "parameters"})
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            "<|START_THINKING|>": "think",
            "<|END_THINKING|>": "end_think",
            "<|START_ACTION|>": "block",
            "<|END_ACTION|>": "end_block",
            **dict.fromkeys(("<|START_RESPONSE|>", "<|START_TEXT|>"), "text"),
            **dict.fromkeys(("<|END_RESPONSE|>", "<|END_TEXT|>"), "end_text"),
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._in_text = False

    def answer(self, raw: str) -> State:
        """Takes the token in front of the answer in reasoning, which it ends."""
        self._in_text = True
        return self.stop_thinking(raw)

    def open_text(self, raw: str) -> None:
        """Takes the token in front of the answer in content; a word behind anything else."""
        if self._in_text or self.out.wrote_content:
            self.out.content(raw)
        else:
            self._in_text = True
            self.out.boundary()

    def end_text(self, raw: str) -> None:
        if self._in_text:
            self._in_text = False
            self.out.boundary()
        else:
            self.out.content(raw)

    _answers: ClassVar = {"text": open_text, "end_text": end_text}
    table: ClassVar[Mapping[State, Row]] = {
        **Hermes.table,
        State.REASONING: Hermes.table[State.REASONING].but(text=answer),
        State.CONTENT: Hermes.table[State.CONTENT].but(**_answers),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = {
        State.REASONING: Hermes.reasoning_only[State.REASONING].but(text=answer),
        State.CONTENT: Hermes.reasoning_only[State.CONTENT].but(**_answers),
    }
