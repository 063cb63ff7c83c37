"""Calls as text, in the forms that BFCL asks models without tools of their own to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

Call = tuple[str, Mapping[str, Any]]


def _python(calls: Sequence[Call]) -> str:
    said = (f"{name}({', '.join(f'{key}={value!r}' for key, value in told.items())})" for name, told in calls)
    return f"[{', '.join(said)}]"


def _json(calls: Sequence[Call]) -> str:
    return json.dumps([{"function": name, "parameters": told} for name, told in calls], ensure_ascii=False)


def _verbose_xml(calls: Sequence[Call]) -> str:
    def parameter(name: str, value: Any) -> str:
        return f"<param name={quoteattr(name)} value={quoteattr(str(value))} type={_type(value)}/>"

    return _functions((name, f"<params>{_each(parameter, told)}</params>") for name, told in calls)


def _concise_xml(calls: Sequence[Call]) -> str:
    def parameter(name: str, value: Any) -> str:
        return f"<param name={quoteattr(name)} type={_type(value)}>{escape(str(value))}</param>"

    return _functions((name, _each(parameter, told)) for name, told in calls)


def _functions(parts: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f"<function name={quoteattr(name)}>{text}</function>" for name, text in parts)
    return f"<functions>{inner}</functions>"


def _each(parameter: Callable[[str, Any], str], told: Mapping[str, Any]) -> str:
    return "".join(parameter(name, value) for name, value in told.items())


def _type(value: Any) -> str:
    return quoteattr(type(value).__name__)


FORMS: Mapping[str, Callable[[Sequence[Call]], str]] = {
    "python": _python, "json": _json, "verbose xml": _verbose_xml, "concise xml": _concise_xml,
}  # fmt: skip
