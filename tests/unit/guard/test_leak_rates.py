"""Both error rates of the guard on a part of the bench's table: no leak goes out, no sound answer is lost."""

from collections.abc import Iterable, Iterator

import pytest

from bench.leaks import leaks, sound
from bench.leaks.__main__ import Row, measure
from bench.leaks.case import Case
from bench.leaks.trial import WHOLE

CUTS = ("1", "7", "27", "tokens", WHOLE)


def part(cases: Iterable[Case], each: int) -> Iterator[Case]:
    """Yields so many cases of each kind, spread over grammars, prompts and calls."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.kind, []).append(case)
    for at, group in enumerate(kinds.values()):
        yield from (group[(at + number * len(group) // each) % len(group)] for number in range(each))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return measure([*part(leaks.cases(), 6), *part(sound.cases(real=0), 1)], CUTS)


def named(rows: Iterable[Row], *ends: str) -> list[str]:
    """The rows in which an answer ended so, with the first of the runs."""
    return [f"{row.kind}: {dict(row.ends)}, {row.worst}" for row in rows if any(row.ends[end] for end in ends)]


def test_no_leak_that_structure_tells_goes_out_and_none_costs_the_client_a_clean_second_answer(rows: list[Row]) -> None:
    assert named((row for row in rows if not row.sound and row.decidable), "missed", "killed") == []


def test_no_sound_answer_ends_in_an_error_or_as_another_one(rows: list[Row]) -> None:
    assert named((row for row in rows if row.sound), "killed", "changed") == []


def test_markup_inside_calls_and_quotations_costs_no_second_answer(rows: list[Row]) -> None:
    assert named((row for row in rows if row.sound and row.decidable), "rerun") == []


def test_how_an_answer_is_cut_into_pieces_decides_nothing(rows: list[Row]) -> None:
    assert [row.kind for row in rows if row.decidable and row.depends] == []
