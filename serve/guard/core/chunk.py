"""Parts of a chunk: choices, the details of tokens, and the usage, added up over attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_CHOICES = 128  # OpenAI's limit on `n`
STOPS = ("stop_reason", "matched_stop")  # where vLLM and SGLang say at which text or token of the request they stopped
UNSAID: Any = object()
# Members of a choice that hold an entry a token, or lists of them. In a stream they cover the chunk's own tokens.
_MEMBERS = ("logprobs", "token_ids")
OF_A_WHOLE_CHUNK = (*_MEMBERS, *STOPS)  # in a choice: not to be repeated with every piece of it

TokenDetails = Mapping[str, Any]  # the `_MEMBERS` of one chunk's choice that say something


def choices_of(chunk: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Returns the choices of a chunk; None if they do not have OpenAI's shape: a foreign engine may send anything."""
    choices = chunk.get("choices") or ()
    return list(choices) if isinstance(choices, list | tuple) and all(map(_is_choice, choices)) else None


def stop_of(choice: Mapping[str, Any]) -> Any:
    """Returns the text or token at which an engine stopped, None for neither, `UNSAID` if it does not tell."""
    return next((choice[name] for name in STOPS if name in choice), UNSAID)


def is_index(value: Any) -> bool:
    """Returns whether a value can be the index of a choice."""
    return type(value) is int and 0 <= value < MAX_CHOICES


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict) or not is_index(choice.get("index", 0)):
        return False
    delta = choice.get("delta")
    reason = choice.get("finish_reason")
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    return isinstance(delta, dict | None) and isinstance(reason, str | None) and isinstance(calls, list | None)


class UsageSum:
    """Adds up usage.

    Attributes:
        unreported: Attempts that ended before their engine reported.
        extras: Other fields of the last chunk that carried usage, such as vLLM's `metrics`.
    """

    def __init__(self) -> None:
        self.unreported = 0
        self.extras: dict[str, Any] = {}
        self._sum: dict[str, Any] | None = None
        self._present: Mapping[str, Any] | None = None

    @property
    def reported(self) -> bool:
        return self._present is not None

    @property
    def written(self) -> int:
        """The tokens of the present attempt's answer; 0 if they are not known."""
        written = (self._present or {}).get("completion_tokens")
        return written if type(written) is int else 0

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Notes the usage of a chunk; later reports of one attempt replace earlier ones."""
        usage = chunk.get("usage")
        if usage and isinstance(usage, Mapping):
            self._present = usage
            self.extras = {"metrics": chunk["metrics"]} if "metrics" in chunk else {}

    def restart(self) -> None:
        self._sum = self.total()
        self.unreported += self._present is None
        self._present = None

    def resume(self) -> None:
        """Ends the present attempt and begins one that reports for both."""
        self._present = None

    def total(self) -> dict[str, Any] | None:
        """Returns the sum of all reports; None if there is none."""
        if self._present is None:
            return self._sum
        return dict(self._present) if self._sum is None else added(self._sum, self._present)


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds two usage objects field by field, nested ones too; a value that is no number is taken from the second."""
    total = dict(one)
    for key, value in other.items():
        before = total.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            total[key] = added(before, value)
        elif isinstance(value, int | float) and isinstance(before, int | float):
            total[key] = before + value
        elif value is not None or key not in total:
            total[key] = value
    return total


def details_of(choice: Mapping[str, Any]) -> TokenDetails | None:
    """Returns the details of a choice; None if it has none in OpenAI's shape: a foreign engine may send anything."""
    found = {name: value for name in _MEMBERS if (value := choice.get(name)) and isinstance(value, dict | list)}
    return found or None


def without_details(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a choice with null in place of what is said of the chunk as a whole."""
    return {**choice, **{name: None for name in OF_A_WHOLE_CHUNK if name in choice}}


def joined(parts: Iterable[TokenDetails]) -> dict[str, Any]:
    """Returns the details of several chunks as those of one."""
    whole: dict[str, Any] = {}
    for part in parts:
        _add(whole, part)
    return whole


def of_last_characters(details: TokenDetails, count: int) -> TokenDetails:
    """Returns the details of the tokens in which so many last characters of a chunk's text are."""
    logprobs = details.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list):
        return details
    tokens = 0
    while count > 0 and tokens < len(entries):
        tokens += 1
        entry = entries[-tokens]
        token = entry.get("token") if isinstance(entry, dict) else None
        count -= len(token) if isinstance(token, str) else 0
    return _last(details, len(entries), tokens)


def _last(details: TokenDetails, of: int, count: int) -> TokenDetails:
    """Returns the details with the last `count` members of every list that has `of` of them."""

    def shortened(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: shortened(member) for name, member in value.items()}
        return value[of - count :] if isinstance(value, list) and len(value) == of else value

    return {name: shortened(value) for name, value in details.items()}


def _add(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Adds to the lists of `whole`; any other member is the latest one that is not null."""
    for name, value in part.items():
        if isinstance(value, dict):
            inner = whole.get(name)
            if not isinstance(inner, dict):
                inner = whole[name] = {}
            _add(inner, value)
        elif isinstance(value, list):
            before = whole.get(name)
            if isinstance(before, list):
                before += value
            else:
                whole[name] = list(value)
        elif value is not None or name not in whole:
            whole[name] = value
