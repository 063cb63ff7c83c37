"""The names under which callers may ask for models: exact ones first, then patterns such as `claude-*`. Pure."""

from collections.abc import Iterable, Iterator
from itertools import combinations

STAR = "*"
_NOT_BY_PATTERN = ":"  # what follows it says something about the request: `claude-x:nospec`


class ModelNames:
    """The names of one configuration. Each is a name, alias or pattern beside the model's own name.

    Attributes:
        exact: The models' own names by their names and aliases that are no patterns.
    """

    def __init__(self, names: Iterable[tuple[str, str]]) -> None:
        self.exact: dict[str, str] = {}
        self._patterns: list[tuple[str, str, str]] = []
        for name, own_name in names:
            before, star, after = name.partition(STAR)
            if star:
                self._patterns.append((before, after, own_name))
            else:
                self.exact[name] = own_name

    def own_name(self, name: str) -> str | None:
        """Returns the model's own name for a name that a caller used, or None."""
        found = self.exact.get(name)
        return found if found is not None else self._by_pattern(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.own_name(name) is not None

    def _by_pattern(self, name: str) -> str | None:
        if _NOT_BY_PATTERN in name:
            return None
        for before, after, own_name in self._patterns:
            if len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after):
                return own_name
        return None


def ambiguous(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields what is wrong with names: one that is used twice, and patterns of two models that share a name."""
    seen: set[str] = set()
    patterns: list[tuple[str, str]] = []
    for name, own_name in names:
        if name in seen:
            yield f"the model name {name!r} is used twice"
        seen.add(name)
        if STAR in name:
            patterns.append((name, own_name))
    for (one, its_model), (other, others_model) in combinations(patterns, 2):
        if its_model != others_model and _overlap(one, other):
            yield (
                f"the same name may match {one!r} of {its_model} and {other!r} of {others_model}: make one of them "
                "longer, or write the names out"
            )


def _overlap(one: str, other: str) -> bool:
    (before, _, after), (others_before, _, others_after) = one.partition(STAR), other.partition(STAR)
    begins = before.startswith(others_before) or others_before.startswith(before)
    return begins and (after.endswith(others_after) or others_after.endswith(after))
