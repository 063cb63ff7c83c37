"""Whether schemas are judged right, and how long one may take: `python -m bench.schemas [FILE] [--bombs] [--live]`.

Replays MaskBench (one JSON object a line: `case`, `schema`, `tests` of `valid` and `data`) through the guard's own
check, and holds each verdict against MaskBench's label and against stock `jsonschema`. Labels count `format`, which the
guard leaves to strict requests: where only the label differs, `format` is why. Then compiles the schemas of Moonshot's
validator, and plays schemas that cost a naive validator seconds or ages. With `--live`, the values come piece by piece
instead: how much of those that are valid goes out before its end, and whether any part goes out that `jsonschema` finds
wrong.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any

import jsonschema

from lab.attacks.schema_costs import BOMBS
from serve.guard.core.live_prefix import LivePrefix
from serve.guard.core.schema import Schema
from serve.guard.core.schema_cost import Budget, UnjudgedError

SHARED = Path(os.environ.get("SPECGATE_SHARED", Path(__file__).parents[2] / "shared"))
MASKBENCH = SHARED / "suites" / "maskbench.jsonl.gz"
MOONSHOT = SHARED / "conformance" / "json_schemas.jsonl"
_MS = 1e3
_SHOWN = 20


def verdict(schema: Any, value: Any, *, strict: bool = False) -> tuple[str, float]:
    """Returns `valid`, `invalid` or `unjudged`, and the CPU time that it took, in seconds."""
    checked = Schema(schema, strict=strict)
    began_s = thread_time()
    try:
        found = "valid" if checked.mismatch(value) is None else "invalid"
    except UnjudgedError:
        found = "unjudged"
    return found, thread_time() - began_s


def stock(schema: Any, value: Any) -> str:
    """Returns what `jsonschema` says, which takes its time and cannot be stopped."""
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        return "valid" if validator(schema).is_valid(value) else "invalid"
    except Exception as error:  # noqa: BLE001 - bad patterns, references to nothing, recursion
        return type(error).__name__


def rows(path: Path, every: int = 1) -> Iterator[dict[str, Any]]:
    """Yields the rows of MaskBench.

    Args:
        path: Of the file, compressed or not.
        every: Only each so many.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                yield json.loads(line)


class Tally:
    """What came of a set of schemas.

    Attributes:
        values: How many values had which verdict; `label` counts those whose label alone differs.
        unjudged: The cases with a value that was not judged.
        wrong: The cases, labels, verdicts and stock verdicts of what was judged otherwise than by `jsonschema`.
        times: The CPU time of each value in seconds, with its case.
    """

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.unjudged: set[str] = set()
        self.wrong: list[tuple[str, str, str, str]] = []
        self.times: list[tuple[float, str]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Judges the values of a row."""
        for test in row["tests"]:
            label = "valid" if test["valid"] else "invalid"
            found, took_s = verdict(row["schema"], test["data"])
            self.times.append((took_s, row["case"]))
            self.values[found] += 1
            if found == "unjudged":
                self.unjudged.add(row["case"])
            elif found != label:
                expected = stock(row["schema"], test["data"])
                if expected == found:
                    self.values["label"] += 1
                else:
                    self.wrong.append((row["case"], label, found, expected))


def _print_suite(path: Path) -> None:
    tally = Tally()
    schemas = 0
    for row in rows(path):
        tally.add(row)
        schemas += 1
    judged = tally.values["valid"] + tally.values["invalid"]
    values = judged + tally.values["unjudged"]
    print(f"{path.name}: {schemas} schemas, {values} values")
    print(f"  judged otherwise than by jsonschema: {len(tally.wrong)}")
    for wrong in tally.wrong[:_SHOWN]:
        print("   ", *wrong)
    print(f"  only the label differs (format): {tally.values['label']}")
    print(
        f"  unjudged: {tally.values['unjudged']} values, {tally.values['unjudged'] / values:.2%}",
        *sorted(tally.unjudged),
    )
    print(f"  CPU: {sum(took_s for took_s, _ in tally.times):.2f} s in all; the longest")
    for took_s, case in sorted(tally.times, reverse=True)[:5]:
        print(f"    {took_s * _MS:6.2f} ms {case}")


# Keywords that a single value fails for good once it is whole.
_FINAL = frozenset(
    {"type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "minLength", "maxLength", "required", "additionalProperties"}
)  # fmt: skip
_PIECE = 4  # characters of a token


def written(value: Any, path: tuple[str | int, ...], ends: dict[tuple[str | int, ...], int], out: list[str]) -> None:
    """Writes a value as JSON, and notes where each value in it ends.

    Args:
        value: To write.
        path: Of the value.
        ends: Takes the ends, in characters, by path.
        out: Takes the text.
    """
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        out.append("{" if isinstance(value, dict) else "[")
        for number, (name, inner) in enumerate(items):
            out.append(", " if number else "")
            out.append(f"{json.dumps(name)}: " if isinstance(name, str) else "")
            written(inner, (*path, name), ends, out)
        out.append("}" if isinstance(value, dict) else "]")
    else:
        out.append(json.dumps(value))
    ends[path] = sum(map(len, out))


def live_length(schema: Any, text: str) -> int:
    """Returns how many characters of a value go out before it is whole."""
    prefix = LivePrefix(Schema(schema, strict=False).outline(), Budget(1.0))
    for at in range(0, len(text), _PIECE):
        prefix.feed(text[at : at + _PIECE])
    return len(prefix.take())


def _print_live(path: Path) -> None:
    found: Counter[str] = Counter()
    for row in rows(path):
        for value in (test["data"] for test in row["tests"] if isinstance(test["data"], dict)):
            ends: dict[tuple[str | int, ...], int] = {}
            out: list[str] = []
            written(value, (), ends, out)
            text = "".join(out)
            said, _ = verdict(row["schema"], value)
            if said == "unjudged":
                continue
            length = live_length(row["schema"], text)
            found[said] += 1
            if said == "valid":
                found["characters"] += len(text)
                found["live"] += length
                found["all"] += length >= len(text) - 2
                continue
            try:
                errors = list(jsonschema.Draft202012Validator(row["schema"]).iter_errors(value))
            except Exception:  # noqa: BLE001, S112 - bad patterns, references to nothing
                continue
            final = [ends[tuple(error.absolute_path)] for error in errors if error.validator in _FINAL]
            found["wrong parts"] += len(final)
            found["sent"] += sum(length >= end for end in final)
    print(f"{path.name}, piece by piece: {found['valid']} valid and {found['invalid']} invalid objects")
    print(f"  valid ones that go out but for their last bracket: {found['all'] / found['valid']:.1%}")
    print(f"  characters of valid ones that go out: {found['live'] / found['characters']:.1%}")
    print(f"  wrong parts of invalid ones: {found['wrong parts']}, of which went out: {found['sent']}")


def _print_moonshot(path: Path) -> None:
    found: Counter[tuple[str, str]] = Counter()
    worst_s = 0.0
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        schema = row["row"].get("schema", row["row"]) if "expect" in row["row"] else row["row"]
        try:
            schema = json.loads(schema) if isinstance(schema, str) else schema
        except ValueError:
            continue  # of a parser's tests
        said, took_s = verdict(schema, {})
        found["sound" if row["mfjs_valid"] else "broken", "unjudged" if said == "unjudged" else "judged"] += 1
        worst_s = max(worst_s, took_s)
    print(f"{path.name}: longest {worst_s * _MS:.2f} ms;", *(f"{a}, {b}: {n};" for (a, b), n in sorted(found.items())))


def _print_bombs() -> None:
    print(f"{'bomb':<34}{'first, ms':>10}{'again, ms':>10}")
    for name, (schema, value) in BOMBS.items():
        (said, first_s), (_, again_s) = verdict(schema, value), verdict(schema, value)
        print(f"{name:<34}{first_s * _MS:>10.2f}{again_s * _MS:>10.2f}  {said}")


def main() -> None:
    """Prints all of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.schemas")
    parser.add_argument(
        "file", nargs="?", type=Path, default=MASKBENCH, help="rows as MaskBench's, .jsonl or .jsonl.gz"
    )
    parser.add_argument("--bombs", action="store_true", help="only what costs a naive validator ages")
    parser.add_argument("--live", action="store_true", help="only how much of the values goes out while they grow")
    arguments = parser.parse_args()
    gc.disable()  # what it looks through here is this benchmark's own
    if arguments.live:
        _print_live(arguments.file)
        return
    if not arguments.bombs:
        _print_suite(arguments.file)
        if MOONSHOT.is_file():
            _print_moonshot(MOONSHOT)
    _print_bombs()


if __name__ == "__main__":
    main()
