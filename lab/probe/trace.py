"""The tokens of an answer, and what they tell of a broken one: who broke it, the model, its engine or the parser.

The engine says how likely it held each token to be. An engine without a drafter, the judge, says the same of the same
tokens, which it reads as a prompt: no draft and no earlier step can have put its state wrong.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.probe.check import check
from lab.probe.trial_log import CLEAN, MISSED
from serve.parsing import GRAMMARS, parse

# Natural logarithms. Numeric noise between two engines is a fraction of 1.
_GAP = 3.0  # a factor of 20
_HARDLY_DRAWN = -13.8  # 1 in a million: the tail of a vocabulary is long, so that 1 in 10,000 is drawn now and then
_HARDLY_BEST = -6.9  # 1 in 1,000: the likeliest of all tokens is likelier
_MISMATCHES = {"unknown_argument", "missing_argument"}  # a matter of the schema, not of the text


@dataclass
class Trace:
    """The tokens of one answer.

    Attributes:
        prompt: Ids of the prompt's tokens.
        ids: Ids of the answer's tokens.
        texts: Their texts.
        logprobs: What the engine gave each of them, as natural logarithms.
        tops: What it gave the likeliest tokens in each place, by their texts, if it was asked.
    """

    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[str, float]] = field(default_factory=list)

    def add(self, part: Mapping[str, Any]) -> None:
        """Add the tokens of the first choice of a whole answer or of a stream's chunk."""
        self.prompt = self.prompt or list(part.get("prompt_token_ids") or ())
        for choice in part.get("choices") or ():
            self.ids += choice.get("token_ids") or ()
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                self.texts.append(entry["token"])
                self.logprobs.append(entry["logprob"])
                self.tops.append({top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()})

    @property
    def complete(self) -> bool:
        """True if the engine said everything of every token; an engine that does not know the fields says nothing."""
        return bool(self.prompt and self.ids) and len(self.ids) == len(self.texts)


def cause(request: Mapping[str, Any], trace: Trace, scores: Sequence[float]) -> dict[str, Any]:
    """Returns who broke an answer, and the token that shows it.

    - `parser`: read as they are, the tokens are a sound answer: calls, or the JSON that was asked for.
    - `sampling`: the engine emitted a token that it held to be all but impossible at the request's temperature.
    - `state`: the engine held a token to be likely that the judge holds to be far less likely.
    - `model`: nothing of the kind.

    Args:
        request: The request body.
        trace: Of a broken answer.
        scores: What the judge gives each token.
    """
    if _spells_a_sound_answer(request, trace):
        return {"cause": "parser"}
    hardly = _hardly(request.get("temperature"))
    rows = list(zip(trace.texts, trace.logprobs, scores, strict=True))
    return (
        _first("sampling", rows, (max(own, clean) < hardly for _, own, clean in rows))
        or _first("state", rows, (own - clean > _GAP for _, own, clean in rows))
        or {"cause": "model"}
    )


def _hardly(temperature: float | None) -> float:
    """Returns the log-probability below which a token is not drawn; engines report it as of a temperature of 1."""
    if temperature == 0:
        return _HARDLY_BEST
    return _HARDLY_DRAWN * max(1.0, 1.0 if temperature is None else temperature)


def _first(name: str, rows: Sequence[tuple[str, float, float]], shows: Iterable[bool]) -> dict[str, Any] | None:
    for place, found in enumerate(shows):
        if found:
            text, own, clean = rows[place]
            return {"cause": name, "token": place, "text": text, "engine": round(own, 2), "judge": round(clean, 2)}
    return None


def _spells_a_sound_answer(request: Mapping[str, Any], trace: Trace) -> bool:
    """Returns whether some grammar reads a sound answer from the tokens; a broken text is broken in every grammar."""
    tools = request.get("tools") or ()
    whole, but_the_last = "".join(trace.texts), "".join(trace.texts[:-1])  # which may only end the turn
    return any(_is_sound(request, text, grammar, tools) for grammar in GRAMMARS for text in (whole, but_the_last))


def _is_sound(request: Mapping[str, Any], text: str, grammar: str, tools: Collection[Mapping[str, Any]]) -> bool:
    message = parse(text, grammar, tools, thinking="</think>" in text and "<think>" not in text)
    if {each.kind for each in message.violations} - _MISMATCHES or (tools and not message.tool_calls):
        return False  # calls of another grammar look like text
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    read = {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}
    answer = {"choices": [{"index": 0, "message": read, "finish_reason": "tool_calls" if calls else "stop"}]}
    return check(request, answer)["outcome"] in (CLEAN, MISSED)
