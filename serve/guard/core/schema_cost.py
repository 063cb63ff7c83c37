"""The time that a request's schemas may take, and a bound of what one needs for a value.

The bound is known before the work begins, as native code cannot be interrupted. A schema is a graph. Some edges lead to
schemas for the same value (`allOf`, `$ref`), which add up: twenty-four definitions that refer twice to the next are
sixteen million steps. Others lead to schemas for the value's members, of which each member gets but one (`properties`)
or all (`patternProperties`). From this follows a bound of the work at any single place of a value, by the value's
depth; times the number of places it bounds the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

_BUDGET_S = 0.015

# Measured, and then some: `python -m bench.schemas --bombs` shows what is left.
PLACE_NS = 12.0
_TEXT_NS = 100.0  # a text, or a member by its name
_CHARACTER_NS = 0.5
_STATE_NS = 1.5  # for a character of a text
_COMPARED_NS = 1_500.0  # a place, with up to fifteen others
_COPIED_NS = 150.0  # a place, into an error
_WRITTEN_NS = 6.0  # a character, into an error
_SEARCH_NS = 100_000.0  # of the engine that tries, up to its limit
_CUBE_NS = 1.0  # of the cube of a text's length, for that engine
_WALKED_S = 2.5e-7  # a place, to measure it
_LONG_INTEGER = 63  # bits
_DIGIT_BITS = 3

_MOST_STEPS = 6_000  # of parts, to find the bound for a value of some depth
_MOST_FRAMES = 4_000  # of the native stack


class UnjudgedError(Exception):
    """A schema could not be applied: it is not valid, or it might take more time than a request may."""


class TooMuchWorkError(UnjudgedError):
    """It might take more time than a request may."""


class Budget:
    """The CPU time that all of one request's schemas may take together.

    The validator is native code that nothing can interrupt and that keeps the interpreter's lock. So work is admitted
    by a bound of what it may take, before it begins; what it really took is subtracted afterwards.

    Where there are several schemas, none takes more than half of what is left, so that one tool's schema cannot leave
    all the others unjudged.

    Attributes:
        schemas: Number of schemas that share it.
    """

    def __init__(self, limit_s: float = _BUDGET_S) -> None:
        self.schemas = 0
        self._left_s = limit_s
        self._began_s = 0.0

    @property
    def share_s(self) -> float:
        """The most that the next piece of work may take."""
        return self._left_s / 2 if self.schemas > 1 else self._left_s

    def admit(self, bound_s: float) -> None:
        """Lets work begin that takes no longer than its bound.

        Raises:
            TooMuchWorkError: That is more than there is.
        """
        if bound_s > self.share_s:
            raise TooMuchWorkError("too much work")

    def __enter__(self) -> None:
        """Begins a block whose time is subtracted."""
        self._began_s = thread_time()

    def __exit__(self, *_: object) -> None:
        self._left_s -= thread_time() - self._began_s


@dataclass(slots=True)
class SchemaPart:
    """One schema of a graph.

    Attributes:
        own_ns: Of its own keywords, at one place.
        states: Of its patterns for a text at this place.
        searches: Its patterns that are not regular.
        compares: How often it compares a whole value with others.
        unevaluated: Whether it asks once more what the schemas for the same value have evaluated.
        same: Indexes of the schemas for the same value.
        named: Of those for members, by the member's name.
        one_member: Of those for a member that is not named, of which each gets at most one.
        any_member: Of those for all of an object's members.
        listed: Of those for the first items.
        one_item: Of those for an item behind these, of which each gets at most one.
        any_item: Of those for all items.
    """

    own_ns: float = PLACE_NS
    states: float = 0.0
    searches: float = 0.0
    compares: float = 0.0
    unevaluated: bool = False
    same: list[int] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    one_member: list[int] = field(default_factory=list)
    any_member: list[int] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)
    one_item: list[int] = field(default_factory=list)
    any_item: list[int] = field(default_factory=list)

    def below(self) -> Iterable[int]:
        return (*self.members(), *self.any_member, *self.items(), *self.any_item)

    def members(self) -> Iterable[int]:
        """Returns those for members of which each member gets at most one."""
        return (*self.named.values(), *self.one_member)

    def items(self) -> Iterable[int]:
        """Returns those for items of which each item gets at most one."""
        return (*self.listed, *self.one_item)


@dataclass(frozen=True, slots=True)
class ValueSize:
    """The size of a value, as deep as a schema looks.

    Attributes:
        places: Number of values within it; a number that is long counts as many.
        depth: Of nesting.
        characters: In all texts and names.
        texts: Texts and names.
        cubes: The sum of the cubes of their lengths.
    """

    places: int
    depth: int
    characters: int
    texts: int
    cubes: int

    @staticmethod
    def most(chars: int) -> ValueSize:
        """Returns a size that no value exceeds whose JSON has so many characters."""
        return ValueSize(chars + chars * chars // 1_000, chars, chars, chars, chars**3)


class Cost:
    """Bounds of the work of a schema, by its graph, of which the first part is the schema itself.

    Attributes:
        reach: How deep it looks into a value; infinite if it refers to itself.
        expanded: Schemas that the compiler writes out, because they are asked once more.

    Raises:
        UnjudgedError: It refers to itself for the same value.
    """

    def __init__(self, parts: Sequence[SchemaPart]) -> None:
        order = _order(parts, lambda part: part.same)
        if order is None:
            raise UnjudgedError("a schema that refers to itself")
        down = _order(parts, lambda part: (*part.same, *part.below()))
        self.expanded = _expanded(parts, order)
        self._frames = _longest(parts, order)
        self._work = _Bound(parts, order, down, [part.own_ns for part in parts])
        self._states = _Bound(parts, order, down, [part.states for part in parts])
        self._searches = _Bound(parts, order, down, [part.searches for part in parts])
        self._compares = _Bound(parts, order, down, [part.compares for part in parts])
        self._parts = () if any(part.unevaluated for part in parts) else parts
        recursive = down is None or any(part.compares for part in parts)
        self.reach = math.inf if recursive else _reach(parts, down or ())

    def bound_s(self, size: ValueSize, value: Any = None) -> float:
        """Returns the longest that judging a value of a size can take.

        Adding up the work of the value itself, if that is given, takes time but misses less.
        """
        depth = min(size.depth, self.reach)
        if self._frames * (depth + 1) > _MOST_FRAMES:
            return math.inf
        root_ns, place_ns = self._work.at(depth)
        states, searches = max(self._states.at(depth)), max(self._searches.at(depth))
        work_ns = root_ns + size.places * place_ns + size.characters * states * _STATE_NS
        if searches:
            work_ns += searches * (size.texts * _SEARCH_NS + size.cubes * _CUBE_NS)
        if value is not None and self._parts:
            try:
                work_ns = min(work_ns, _Sum(self._parts).of(0, value))
            except RecursionError:
                return math.inf
        compared_ns = max(self._compares.at(depth)) * _COMPARED_NS * size.depth
        places_ns = size.places * (PLACE_NS + compared_ns) + size.texts * _TEXT_NS + size.characters * _CHARACTER_NS
        return (work_ns + places_ns) * 1e-9

    def search_bound_s(self, size: ValueSize, value: Any) -> float:
        """Returns the longest that finding the place of a mismatch can take: it is judged again, and copied."""
        return 3 * self.bound_s(size, value) + (size.places * _COPIED_NS + size.characters * _WRITTEN_NS) * 1e-9


class _Sum:
    """The work of a graph for a value: that of each part at each place, added up as often as it is done.

    Nothing in the graph is unevaluated.
    """

    def __init__(self, parts: Sequence[SchemaPart]) -> None:
        self._parts = parts
        self._known: dict[tuple[int, int], float] = {}

    def of(self, index: int, value: Any) -> float:
        """Returns the work of a part for a value, in nanoseconds; infinite if adding it up takes too long."""
        key = index, id(value)
        known = self._known.get(key)
        if known is not None:
            return known
        if len(self._known) > _MOST_STEPS:
            return math.inf
        part = self._parts[index]
        work_ns = part.own_ns + sum([self.of(other, value) for other in part.same])
        if type(value) is dict:
            for name, member in value.items():
                work_ns += sum([self.of(other, name) for other in part.any_member])  # the patterns of names
                named = part.named.get(name)
                work_ns += sum([self.of(other, member) for other in part.one_member]) if named is None else 0.0
                work_ns += self.of(named, member) if named is not None else 0.0
                work_ns += sum([self.of(other, member) for other in part.any_member])
        elif type(value) is list:
            for number, item in enumerate(value):
                applied = part.listed[number : number + 1] or part.one_item
                work_ns += sum([self.of(other, item) for other in (*applied, *part.any_item)])
        elif type(value) is str:
            size = len(value)
            work_ns += size * part.states * _STATE_NS
            work_ns += part.searches and part.searches * (_SEARCH_NS + size**3 * _CUBE_NS)
        self._known[key] = work_ns
        return work_ns


class _Bound:
    """The most work at any one place of a value.

    Args:
        parts: The graph.
        order: The parts, such that each comes behind those that it applies to the same value.
        down: The same for all that it applies; None if it refers to itself.
        own: The work of each part by itself.
    """

    def __init__(
        self, parts: Sequence[SchemaPart], order: Sequence[int], down: Sequence[int] | None, own: Sequence[float]
    ) -> None:
        self._settled = True
        if not any(own):
            self._found = [(0.0, 0.0)]
            return
        here = _summed(parts, order, own)
        if down is not None:
            self._found = [(here[0], _settled(parts, down, here))]
            return
        self._settled = False
        self._found = [(here[0], 0.0)]
        self._parts = parts
        self._order = order
        self._here = here
        self._most = here
        self._steps = 0

    def at(self, depth: float) -> tuple[float, float]:
        """Returns the bounds for a value of a depth: at its root, and at any other place."""
        while depth >= len(self._found) and not self._settled:
            self._steps += len(self._parts)
            if self._steps > _MOST_STEPS:
                return math.inf, math.inf
            below = self._below(self._most)
            most = [max(pair) for pair in zip(self._here, below, strict=True)]
            self._found.append((self._here[0], below[0]))
            self._settled = most == self._most
            self._most = most
        return self._found[min(int(min(depth, 1e9)), len(self._found) - 1)]

    def _below(self, most: Sequence[float]) -> list[float]:
        """Returns the most work at any place below that at which a part is applied."""
        members = [_below(most, part.members(), part.any_member) for part in self._parts]
        items = [_below(most, part.items(), part.any_item) for part in self._parts]
        members, items = _summed(self._parts, self._order, members), _summed(self._parts, self._order, items)
        return [max(pair) for pair in zip(members, items, strict=True)]


def measure(value: Any, reach: float, limit_s: float) -> ValueSize:
    """Returns the size of a value, as deep as the reach.

    Raises:
        TooMuchWorkError: Looking would take longer than the limit.
    """
    most = limit_s / _WALKED_S
    level = [value]
    places = depth = characters = texts = cubes = 0
    while level:
        places += len(level)
        if depth > reach:
            break
        depth += 1
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if places + len(below) + (len(each) if kind is dict or kind is list else 0) > most:
                raise TooMuchWorkError("too much work")
            if kind is dict:
                below.extend(each.values())
                lengths = list(map(len, each))
            elif kind is str:
                lengths = [len(each)]
            else:
                places += _add_plain(each, below)
                continue
            texts += len(lengths)
            characters += sum(lengths)
            cubes += sum([length**3 for length in lengths])
        level = below
    return ValueSize(places, depth, characters, texts, cubes)


def _add_plain(value: Any, below: list[Any]) -> int:
    """Adds the items of a list to others; returns how many places more a number counts that is long."""
    if type(value) is list:
        below.extend(value)
    elif type(value) is int and value.bit_length() > _LONG_INTEGER:
        digits = value.bit_length() // _DIGIT_BITS
        return digits + digits * digits // 1_000
    return 0


def _settled(parts: Sequence[SchemaPart], down: Sequence[int], here: Sequence[float]) -> float:
    """Returns the most work at any place below the root, for values of any depth, in a graph without a way back.

    The work of each part at its own place is `here`; `down` is that of `_Bound`.
    """
    most = list(here)
    sums = [[0.0] * len(most), [0.0] * len(most)]
    again = [[0.0] * len(most), [0.0] * len(most)]
    for index in down:
        part = parts[index]
        for kind, (one, every) in enumerate(((part.members(), part.any_member), (part.items(), part.any_item))):
            sums[kind][index], again[kind][index] = _sum(part, _below(most, one, every), sums[kind], again[kind])
        most[index] = max(here[index], sums[0][index], sums[1][index])
    return max(sums[0][0], sums[1][0])


def _order(parts: Sequence[SchemaPart], edges: Callable[[SchemaPart], Iterable[int]]) -> list[int] | None:
    """Returns the parts such that each comes behind those that its edges lead to; None if one leads back to itself."""
    order: list[int] = []
    begun = [False] * len(parts)
    done = [False] * len(parts)
    for start in range(len(parts)):
        stack = [] if begun[start] else [(start, iter(edges(parts[start])))]
        begun[start] = True
        while stack:
            index, following = stack[-1]
            other = next(following, None)
            if other is None:
                done[index] = True
                order.append(index)
                stack.pop()
            elif not begun[other]:
                begun[other] = True
                stack.append((other, iter(edges(parts[other]))))
            elif not done[other]:
                return None
    return order


def _longest(parts: Sequence[SchemaPart], order: Sequence[int]) -> int:
    """Returns the length of the longest way of schemas for the same value."""
    deep = [1] * len(parts)
    for index in order:
        deep[index] = 1 + max((deep[other] for other in parts[index].same), default=0)
    return max(deep)


def _expanded(parts: Sequence[SchemaPart], order: Sequence[int]) -> float:
    """Returns how many schemas the compiler writes out, for those that look for what is unevaluated."""
    if not any(part.unevaluated for part in parts):
        return 0.0
    whole = _summed(parts, order, [1.0] * len(parts))
    return max(whole) * _longest(parts, order)


def _reach(parts: Sequence[SchemaPart], down: Sequence[int]) -> int:
    """Returns how many levels of a value are looked at below the first."""
    deep = [0] * len(parts)
    for index in down:
        below = max((1 + deep[other] for other in parts[index].below()), default=0)
        deep[index] = max(below, max((deep[other] for other in parts[index].same), default=0))
    return deep[0]


def _summed(parts: Sequence[SchemaPart], order: Sequence[int], own: Sequence[float]) -> list[float]:
    """Returns for each part the sum over all that it applies to the same value, as often as it does."""
    total = [0.0] * len(parts)
    again = [0.0] * len(parts)
    for index in order:
        total[index], again[index] = _sum(parts[index], own[index], total, again)
    return total


def _sum(part: SchemaPart, own: float, total: Sequence[float], again: Sequence[float]) -> tuple[float, float]:
    """Returns the work of a part, and that of asking it once more what it has evaluated."""
    if not part.same and not part.unevaluated:
        return own, own
    once = own
    twice = own
    for other in part.same:
        once += total[other]
        twice += total[other] + again[other]
    return min(once + 2 * twice * part.unevaluated, 1e15), min(twice, 1e15)


def _below(most: Sequence[float], one: Iterable[int], every: Iterable[int]) -> float:
    """Returns the work at a member or item to which at most one of some schemas is applied, and all of others."""
    return max((most[index] for index in one), default=0.0) + sum(most[index] for index in every)
