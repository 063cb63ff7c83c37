"""Two error rates of the guard, by kind of answer: `python -m bench.leaks [--json] [--quick]`.

A leak is missed if the client gets markup for a call, loses a call or gets one that nobody made; the second attempt is
clean. A sound answer is killed if the client gets an error, although both attempts gave the same sound answer. Each
answer is streamed in pieces of several lengths and checked whole; `depends` counts the answers whose end differs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import get_args

from bench.leaks import leaks, sound
from bench.leaks.case import Case
from bench.leaks.trial import CUTS, WHOLE, End, play

ENDS: Sequence[End] = get_args(End)
WRONG: frozenset[End] = frozenset({"missed", "killed", "changed"})
_QUICK = ("1", "7", "27", "tokens", WHOLE)


@dataclass
class Row:
    """How the cases of one kind ended.

    Attributes:
        kind: What is special about the answer.
        sound: Whether it is sound.
        decidable: Whether structure alone tells a leak from data.
        cases: How many there are.
        runs: How many ways of cutting them were played.
        ends: How many of the runs ended so.
        depends: Cases whose end depends on how the answer was cut.
        worst: The runs that went wrong, by grammar, prompt and cut; the first few.
    """

    kind: str
    sound: bool
    decidable: bool
    cases: int = 0
    runs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    depends: int = 0
    worst: list[str] = field(default_factory=list)


def measure(cases: Iterable[Case], cuts: Sequence[str], examples: int = 3) -> list[Row]:
    """Plays every case with every cut.

    Args:
        cases: To play.
        cuts: Keys of `CUTS`, or `WHOLE`.
        examples: Most runs gone wrong that a row names.
    """
    rows: dict[tuple[str, bool], Row] = {}
    for case in cases:
        row = rows.setdefault((case.kind, case.sound), Row(case.kind, case.sound, case.decidable))
        ends: defaultdict[End, list[str]] = defaultdict(list)
        for cut in cuts:
            end = play(case, cut)
            ends[end].append(cut)
            row.ends[end] += 1
        row.cases += 1
        row.runs += len(cuts)
        row.depends += len(ends) > 1
        for end in [end for end in ends if end in WRONG]:
            if len(row.worst) < examples:
                row.worst.append(f"{end}: {case.grammar}, {case.prompt}, cut {'/'.join(ends[end])}")
    return [*rows.values()]


def totals(rows: Sequence[Row]) -> Mapping[str, Mapping[str, float]]:
    """Returns the rates over leaks and sound answers, those that structure tells apart and the others."""
    groups = {
        "leaks": [row for row in rows if not row.sound and row.decidable],
        "undecidable leaks": [row for row in rows if not row.sound and not row.decidable],
        "sound answers": [row for row in rows if row.sound and row.decidable],
        "doubtful sound answers": [row for row in rows if row.sound and not row.decidable],
    }
    return {name: _rates(group) for name, group in groups.items() if group}


def _rates(rows: Sequence[Row]) -> Mapping[str, float]:
    ends: Counter[str] = sum((row.ends for row in rows), Counter())
    runs, cases = sum(row.runs for row in rows), sum(row.cases for row in rows)
    return {
        "cases": cases,
        "runs": runs,
        **{end: ends[end] / runs for end in ENDS},
        "depends": sum(row.depends for row in rows) / cases,
    }


def _print(rows: Sequence[Row]) -> None:
    print(f"{'kind':64} {'cases':>7}" + "".join(f"{name:>8}" for name in (*ENDS, "depends")))
    for row in rows:
        shares = "".join(f"{row.ends[end] / row.runs:8.1%}" for end in ENDS)
        mark = "" if row.decidable else " (doubtful)"
        print(f"{row.kind[:50] + mark:64} {row.cases:7}{shares}{row.depends / row.cases:8.1%}")
        for each in row.worst:
            print(f"    {each}")
    for name, rates in totals(rows).items():
        reply = ", ".join(f"{end} {rate:.2%}" for end, rate in rates.items() if end not in ("cases", "runs"))
        print(f"{name}: {rates['cases']} cases, {rates['runs']} runs: {reply}")


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description="leaks that the guard misses, sound answers that it kills")
    parser.add_argument("--quick", action="store_true", help="fewer cuts and excerpts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--kind", default="", help="only kinds that contain this")
    options = parser.parse_args()
    every = chain(leaks.cases(), sound.cases(20 if options.quick else 60))
    rows = measure((case for case in every if options.kind in case.kind), _QUICK if options.quick else (*CUTS, WHOLE))
    if options.json:
        print(json.dumps({"totals": totals(rows), "rows": [vars(row) for row in rows]}, indent=1))
    else:
        _print(rows)


if __name__ == "__main__":
    main()
