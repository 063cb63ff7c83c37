"""Finds advisories that somebody should look at again, and texts that a comment has cut."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date

import yaml
from packaging.version import Version

from policies.advisory import Advisory

_TEXTS = frozenset({"title", "summary", "text", "source", "finding", "claim"})
MAX_AGE_DAYS = 45  # a monthly round, half a month late


def stale(
    advisories: Iterable[Advisory], engines: Mapping[str, str], today: date, max_age_days: int = MAX_AGE_DAYS
) -> dict[str, str]:
    """Returns why each advisory that should be checked again should be, by id.

    Args:
        advisories: All; withdrawn ones are kept for the record and never stale.
        engines: Engine -> the version in use.
        today: The current day.
        max_age_days: Days after which a check no longer counts.
    """
    reasons = {advisory.id: _why(advisory, engines, today, max_age_days) for advisory in advisories}
    return {name: reason for name, reason in reasons.items() if reason}


def _why(advisory: Advisory, engines: Mapping[str, str], today: date, max_age_days: int) -> str | None:
    checked = advisory.checked
    if advisory.status == "withdrawn":
        return None
    if checked is None:
        return "never checked"
    for engine, version in checked.engine_versions.items():
        if engine in engines and Version(engines[engine]) > Version(version):
            return f"checked up to {engine} {version}; {engines[engine]} is in use"
    age = (today - checked.date).days
    if age < 0:
        return f"checked on {checked.date}, a day that has not come"
    return f"checked {age} days ago, on {checked.date}" if age > max_age_days else None


def cut_texts(document: str) -> Iterator[str]:
    """Yields `line: text` for each text that YAML cuts at ` #`: what follows is a comment, and silently gone.

    Args:
        document: An advisory that can be read.
    """
    lines = document.splitlines()
    for key, node in _members(yaml.compose(document, yaml.SafeLoader)):
        if key in _TEXTS and isinstance(node, yaml.ScalarNode) and node.style is None:
            line = node.end_mark.line
            rest = lines[line][node.end_mark.column :] if line < len(lines) else ""
            if rest.lstrip().startswith("#"):
                yield f"{line + 1}: {node.value!r}"


def _members(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _members(item)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), value
            yield from _members(value)
