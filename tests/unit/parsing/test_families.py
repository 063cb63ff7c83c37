"""The conformance rows of the families beyond Kimi K2 and Qwen3: what must hold, in every chunking.

A row that both vLLM's and SGLang's parsers read alike (`consensus`, and for calls `consensus_calls`) is a gate, and so
is every BFCL row on its calls. Where upstream parsers disagree, docs/adr/0086-parsing-disputes-of-families.md decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serve.parsing import GRAMMARS, ParsedMessage, parse
from tests.unit.parsing import cases

FAMILIES = (
    "glm47", "ling3", "hy_v3", "step3p5", "mimo", "nemotron_v3", "deepseek_v3", "deepseek_v31", "deepseek_v32",
    "deepseek_v4", "deepseek_v41", "minimax_m2", "minimax_m3", "kimi_k3", "harmony",
)  # fmt: skip
# Cases of consensus rows that we read otherwise, by family: why. Each must be a dispute that the ADR settles.
DECIDED_AGAINST: dict[str, dict[str, str]] = {
    "step3p5": {
        "test_extract_tool_calls_non_streaming_mixed_content_and_multiple_tool_calls": "T3: drops the text between "
        "two calls; nothing may vanish",
    },
    "minimax_m2": {
        "TestNonStreaming::test_mixed_tool_names_only_return_valid": "T1: drops a call of an undeclared tool; it is "
        "kept and reported",
        "TestStreaming::test_streaming_invalid_tool_name_is_rejected": "T1: as above",
    },
    "minimax_m3": {
        "TestArguments::test_malformed_element_keeps_preceding_params[]<]minimax[>[<note>unterminated]": "T6: drops "
        "the value that lost its end tag; it has streamed, and is kept and reported",
    },
}
ALWAYS_THINK = {"step3p5"}  # families whose templates have no switch, whatever the request says


def rows(*families: str) -> list[dict[str, Any]]:
    return [
        row
        for family in families
        for name in (f"bfcl_{family}", *(f"{family}_{kind}" for kind in ("tool", "reasoning", "e2e")))
        for row in cases.rows(f"families/{name}")
        if family in GRAMMARS
    ]


def chunkings(row: dict[str, Any]) -> Iterator[tuple[str, ParsedMessage]]:
    """The row in complete mode, as its own deltas, and in groups of one to many characters."""
    text, how = row["output_text"], options(row)
    yield "complete", parse(text, **how)
    for size in (1, 2, 3, 5, 8, 13, 29):
        yield f"{size} characters", cases.stream(cases.grouped(text, size), **how)
    if row.get("deltas"):
        yield "deltas", cases.stream([each if isinstance(each, str) else each[-1] for each in row["deltas"]], **how)


def options(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "grammar": row["family"],
        "tools": row.get("tools") or [],
        "thinking": bool(row.get("prompt_ends_in_think"))
        or (row["kind"] == "reasoning" and row["family"] in ALWAYS_THINK),
        "calls": row["kind"] != "reasoning" or "tool_calls" in row["asserts"],
    }


def gates(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row with nothing asserted but what is a gate; None if nothing is."""
    if row.get("consensus"):
        return row
    if row.get("consensus_calls") or row["case"].startswith("bfcl"):
        calls = [name for name in row["asserts"] if name.startswith("tool_call")]
        return {**row, "asserts": calls} if calls else None
    return None


@pytest.mark.parametrize("row", cases.params(filter(None, map(gates, rows(*FAMILIES)))))
def test_what_both_upstream_parsers_read_is_read_in_every_chunking(row: dict[str, Any]) -> None:
    found = {how: cases.complaints(row, message) for how, message in chunkings(row)}
    lacking = {how: what for how, what in found.items() if what}
    if row["case"] in DECIDED_AGAINST.get(row["family"], {}):
        assert lacking, "the row holds after all: take it off the list"
    else:
        assert not lacking


@pytest.mark.parametrize("row", cases.params(rows(*FAMILIES)))
def test_a_row_reads_the_same_in_every_chunking(row: dict[str, Any]) -> None:
    (_, first), *others = chunkings(row)
    assert {how: message for how, message in others if message != first} == {}


@pytest.mark.parametrize("row", cases.params(row for row in rows(*FAMILIES) if row["case"].startswith("bfcl")))
def test_a_good_output_is_reported_as_clean(row: dict[str, Any]) -> None:
    assert parse(row["output_text"], **options(row)).violations == ()


@pytest.mark.parametrize(
    "row", cases.params(row for row in cases.rows("families/corrupted_families") if row["family"] in GRAMMARS)
)
def test_a_corrupted_output_is_never_clean(row: dict[str, Any]) -> None:
    for how, message in chunkings(row):
        assert message.violations, how
