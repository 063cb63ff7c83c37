"""The echo canary: whether an engine copies identifiers from its prompt into a call as they are.

Under speculation that verifies badly, a few identifiers of a thousand come out one token off, in calls that are valid.
A prompt of this module names identifiers of many kinds, each beside a decoy that differs in one place, and asks for one
call with all of them. What the call has in their places is compared character by character.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

NAMES = 8  # of one request
TOOL = "echo"
_LETTERS = string.ascii_letters + string.digits
_FOLDERS = ("serve", "models", "kimi-k3", "ночь", "資料", "config", "naïve", "drafters", "α-test", "tokenizer")

Change = Literal["decoy", "slip", "other", "missing"]


def _of(alphabet: str, length: int) -> Callable[[Random], str]:
    return lambda chance: "".join(chance.choices(alphabet, k=length))


def _groups(chance: Random) -> str:
    return "-".join(_of("0123456789abcdef", length)(chance) for length in (8, 4, 4, 4, 12))


def _path(chance: Random) -> str:
    folders = "/".join(chance.sample(_FOLDERS, 3))
    return f"{folders}/{_of(string.ascii_lowercase, 6)(chance)}_{chance.randrange(10, 99)}.json"


KINDS: Mapping[str, Callable[[Random], str]] = {
    "UUID": _groups,
    "path": _path,
    "call id": lambda chance: f"call_{_of(_LETTERS, 24)(chance)}",
    "number": _of("123456789", 14),
    "hash": _of("0123456789abcdef", 40),
    "URL": lambda chance: f"https://example.com/v2/{_of(_LETTERS, 10)(chance)}?page={chance.randrange(100, 999)}",
    "record": lambda chance: f"TCK-{_of(string.digits, 4)(chance)}-{_of(string.ascii_uppercase, 3)(chance)}",
    "text": lambda chance: "".join(chance.choices("äöüßçñéèабвгд検査依赖環境0123456789", k=12)),
}


@dataclass(frozen=True)
class EchoPrompt:
    """One request of the canary.

    Attributes:
        names: That the call must have, in order.
        decoys: One for each, which it must not have.
    """

    names: tuple[str, ...]
    decoys: tuple[str, ...]

    @classmethod
    def of(cls, number: int, seed: int = 0) -> EchoPrompt:
        """Returns the prompt of a number; equal numbers have equal names."""
        chance = Random(f"{seed}:{number}")
        names = tuple(make(chance) for make in list(KINDS.values())[:NAMES])
        return cls(names, tuple(_decoy(name, chance) for name in names))

    def body(self, *, stream: bool) -> dict[str, Any]:
        """Returns the request, without a model."""
        values = {"type": "array", "items": {"type": "string"}, "minItems": NAMES, "maxItems": NAMES}
        schema = {"type": "object", "properties": {"values": values}, "required": ["values"]}
        function = {"name": TOOL, "description": "Records values exactly as given.", "parameters": schema}
        lines = [f"- not {decoy}, that is another record" for decoy in self.decoys]
        text = "\n".join(
            (
                f"Call `{TOOL}` once, with exactly these {NAMES} values in this order, character by character.",
                "Some records have nearly the same values; do not use those:",
                *lines,
                "The values:",
                json.dumps(self.names, ensure_ascii=False),
            )
        )
        choice = {"type": "function", "function": {"name": TOOL}}
        return {
            "messages": [{"role": "user", "content": text}],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": choice,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }

    def copied(self, answer: Mapping[str, Any]) -> list[Any] | None:
        """Returns what the call has in the names' places, None where it has nothing; None if there is no such call."""
        values = _values(answer)
        return None if values is None else [*values, *[None] * NAMES][:NAMES]

    def changes(self, answer: Mapping[str, Any]) -> list[Change] | None:
        """Returns how the call's values differ from what was asked for; None if there is no call with values."""
        said = self.copied(answer)
        if said is None:
            return None
        pairs = zip(self.names, self.decoys, said, strict=True)
        return [_change(name, decoy, value) for name, decoy, value in pairs if value != name]


def _decoy(name: str, chance: Random) -> str:
    """Returns a name with one letter or digit replaced by another of its kind."""
    places = [place for place, sign in enumerate(name) if sign in _LETTERS]
    place = chance.choice(places[len(places) // 2 :] or [len(name) - 1])
    kind = string.digits if name[place].isdigit() else string.ascii_lowercase
    return name[:place] + chance.choice([sign for sign in kind if sign != name[place]]) + name[place + 1 :]


def _values(answer: Mapping[str, Any]) -> Sequence[Any] | None:
    choices = answer.get("choices") or [{}]
    calls = (choices[0].get("message") or {}).get("tool_calls") or ()
    for call in calls:
        function = call.get("function") or {}
        try:
            values = json.loads(function.get("arguments") or "")["values"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if function.get("name") == TOOL and isinstance(values, list):
            return values
    return None


def _change(name: str, decoy: str, value: Any) -> Change:
    if value is None:
        return "missing"
    if value == decoy:
        return "decoy"
    if not isinstance(value, str):
        return "other"
    before = next((place for place, (a, b) in enumerate(zip(name, value, strict=False)) if a != b), len(value))
    backward = zip(name[::-1], value[::-1], strict=False)
    behind = next((place for place, (a, b) in enumerate(backward) if a != b), len(value))
    return "slip" if before + behind >= len(name) // 2 else "other"
