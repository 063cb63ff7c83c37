"""Rows measured on the published tokenizer; those that need its vocabulary run where that is at hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from serve.engine.kimi_tokenizer import KimiTokenizer, TokenIdError

FOLDER = Path(os.environ.get("SPECGATE_CONFORMANCE", Path(__file__).parents[4] / "shared" / "conformance"))
FILE = FOLDER / "kimi_tokenizer.jsonl"
ROWS: list[dict[str, Any]] = (
    [json.loads(line) for line in FILE.read_text("utf-8").splitlines()] if FILE.exists() else []
)
needs_rows = pytest.mark.skipif(not ROWS, reason=f"no conformance data at {FILE}")
# The row wants either no error or a placeholder; our contract is a clear error, so that a wrong id is never text.
DISPUTED = "decode_out_of_range"


def _run(kimi: KimiTokenizer, row: dict[str, Any]) -> object:
    kwargs = row.get("kwargs", {})
    match row["op"]:
        case "decode":
            return kimi.decode(row["ids"], **kwargs)
        case "token_to_id":
            return kimi.token_to_id(row["token"])
        case "decode_prefixes":
            return [kimi.decode(row["ids"][: size + 1]) for size in range(len(row["ids"]))]
        case "encode":
            return kimi.encode(row["text"], allow_special=kwargs.get("allow_special_tokens", True))
        case "roundtrip":
            return kimi.decode(kimi.encode(row["text"]))
    raise AssertionError(f"unknown operation {row['op']!r}")


@needs_rows
@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_row_holds(row: dict[str, Any], request: pytest.FixtureRequest) -> None:
    real = row["needs"] == "the real tiktoken.model"
    kimi: KimiTokenizer = request.getfixturevalue("published" if real else "kimi")
    if row["case"].startswith(DISPUTED):
        with pytest.raises(TokenIdError):
            _run(kimi, row)
        return
    assert _run(kimi, row) == row["expected"]
