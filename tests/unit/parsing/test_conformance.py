"""Every conformance row about parsers, in every chunking; rows we decide against are listed, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serve.parsing import coerce, fold, parse
from serve.parsing.parser import StreamParser
from tests.unit.parsing import cases

# Where rows contradict one another, the issue, or OpenAI's contract: docs/adr/0010-parsing-disputes.md.
DECIDED_AGAINST = {
    "stream_content_after_tool_section_dropped": "A: drops text behind the calls; nothing may vanish, and "
    "same_chunk_begin_ws_end_then_text keeps it",
    "rust/raw_json_arguments_preserved": "A: as above, for its content; its calls hold",
    "smg/string_parameters": "Q4: guesses types without a schema; engine/coercion/no_tools_keeps_strings does not",
    "smg/type_conversion": "Q4: as above",
    "smg/python_literals": "Q4: as above",
    "smg/incomplete_tags/missing_close": "Q11: drops an unfinished call; stream_truncated_no_end_marker keeps it",
    "smg/invalid_function_name_skipped": "Q10: drops a call of an undeclared tool; it is kept and reported",
    "rust_qwen/raw_args": "H2: eats a newline of the content; smg/test_qwen_multiple_sequential_tools keeps it",
}
FILES = (
    "kimi_k2_tool", "kimi_k2_reasoning", "kimi_k2_e2e", "qwen3_coder_tool", "qwen3_reasoning", "qwen3_e2e",
    "hermes_tool", "bfcl_kimi_k2", "bfcl_qwen3_coder", "bfcl_qwen3_json",
)  # fmt: skip
# Rows that are right to be reported although two upstream parsers agree on their calls.
FAULTY_CONSENSUS = {"malformed_call", "malformed_arguments", "unresolved_call", "unfinished_call", "stray_marker"}


@pytest.fixture(scope="module", autouse=True)
def _print_what_we_decided_against(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line("\nConformance rows decided against (docs/adr/0010-parsing-disputes.md):")
        for case, reason in DECIDED_AGAINST.items():
            reporter.write_line(f"  {case}: {reason}")


@pytest.mark.parametrize("row", cases.params(cases.rows(*FILES)))
def test_a_row_holds_in_every_chunking(row: dict[str, Any]) -> None:
    found = {how: cases.complaints(row, message) for how, message in cases.chunkings(row)}
    lacking = {how: what for how, what in found.items() if what}
    if row["case"] in DECIDED_AGAINST:
        assert lacking, "the row holds after all: take it off the list"
        assert not any(what.startswith(("calls", "ids")) for what in lacking.get("complete", ())) or not row.get(
            "consensus"
        )
    else:
        assert not lacking


@pytest.mark.parametrize("row", cases.params(cases.rows(*FILES)))
def test_a_row_reads_the_same_in_every_chunking(row: dict[str, Any]) -> None:
    (_, first), *others = cases.chunkings(row)
    assert {how: message for how, message in others if message != first} == {}


@pytest.mark.parametrize("row", cases.params(r for r in cases.rows(*FILES) if r.get("consensus", True)))
def test_a_good_output_is_reported_as_clean(row: dict[str, Any]) -> None:
    message = parse(row["output_text"], **cases.options(row))
    assert {violation.kind for violation in message.violations} <= FAULTY_CONSENSUS
    if row["case"].startswith("bfcl"):
        assert message.violations == ()


@pytest.mark.parametrize("row", cases.params(cases.rows("corrupted_outputs")))
def test_a_corrupted_output_is_never_clean(row: dict[str, Any]) -> None:
    for _, message in cases.chunkings(row):
        assert message.violations
        assert "<|" not in (message.content or "")


@pytest.mark.parametrize("row", cases.params(cases.rows("xml_value_coercion")))
def test_a_value_becomes_what_its_schema_says(row: dict[str, Any]) -> None:
    got = coerce(row["value"], {"type": row["schema_type"]})
    assert got == row.get("expected")
    assert type(got).__name__ == row["expected_python_type"]


def test_real_tokens_in_steps_of_one_to_eight_give_the_same_calls() -> None:
    expected = {row["case"]: row for row in cases.rows("bfcl_kimi_k2")}
    token_rows = cases.rows("bfcl_kimi_k2_tokens")
    if not token_rows:
        pytest.skip("the conformance cases are not beside this clone")
    for case, tokens in token_rows:
        for size in range(1, 9):
            parser = StreamParser("kimi_k2", tools=expected[case]["tools"])
            events = []
            for place in range(0, len(tokens), size):
                step = tokens[place : place + size]
                events += parser.feed("".join(text for _, text in step), [token for token, _ in step])
            message = fold(events + parser.finish())
            row = {**expected[case], "expected_content": "I will call the tool."}
            assert cases.complaints(row, message) == [], (case, size)
            assert message.violations == ()
