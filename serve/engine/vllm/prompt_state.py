"""Remembers for each request whether its prompt leaves reasoning open."""

from __future__ import annotations

import weakref
from typing import Any


class PromptState:
    """The state in which prompts leave the model, by request: inside reasoning or not.

    vLLM shows the prompt of a whole answer to the parser of the first choice only, and makes a new parser for every
    choice; this store passes the result on to the others.

    Requests cannot be the keys of a `WeakKeyDictionary`: pydantic models compare by value and are therefore not
    hashable. Entries are keyed by `id()` instead, and a finalizer removes an entry before its id can be reused.
    """

    def __init__(self) -> None:
        self._open: dict[int, bool] = {}

    def get(self, request: Any) -> bool | None:
        """Returns True if reasoning is open, False if it is closed, None if no parser has seen the prompt."""
        return self._open.get(id(request))

    def set(self, request: Any, is_open: bool) -> None:
        """Store the state of a request's prompt; the first one counts."""
        key = id(request)
        if key not in self._open:
            self._open[key] = is_open
            weakref.finalize(request, self._open.pop, key, None)
