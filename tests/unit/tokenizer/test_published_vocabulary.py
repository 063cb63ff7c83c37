"""Our tokenizer on the vocabulary that was published, against tokens that the published tokenizer has made."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from serve.engine.kimi_tokenizer import KimiTokenizer
from serve.parsing import GRAMMARS

FOLDER = Path(os.environ.get("SPECGATE_CONFORMANCE") or Path(__file__).parents[4] / "shared" / "conformance")


def rows(name: str) -> list[Any]:
    path = FOLDER / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no conformance data at {path}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_outputs_with_calls_have_the_published_tokens(published: KimiTokenizer) -> None:
    for case, tokens in rows("bfcl_kimi_k2_tokens"):
        ids = [token_id for token_id, _ in tokens]
        text = "".join(piece for _, piece in tokens)
        assert published.encode(text, allow_special=True) == ids, case
        assert published.decode(ids) == text, case
        assert [published.decode([token_id]) for token_id in ids] == [piece for _, piece in tokens], case


def test_every_token_of_the_published_ranks_is_one_token(published: KimiTokenizer) -> None:
    assert (published.base_size, published.vocab_size) == (163_584, 163_840)
    encode = published.encoding.encode_single_token
    assert all(encode(published.token_bytes(token_id)) == token_id for token_id in range(published.base_size))


@pytest.mark.parametrize("grammar", ["kimi_k2", "kimi_k3"])
def test_the_markers_of_a_grammar_have_the_ids_that_it_says(
    grammar: str, published: KimiTokenizer, published_k3: KimiTokenizer
) -> None:
    tokenizer = published_k3 if grammar == "kimi_k3" else published
    assert {token_id: tokenizer.decode([token_id]) for token_id in GRAMMARS[grammar].token_ids} == dict(
        GRAMMARS[grammar].token_ids
    )


def test_kimi_k3_has_the_same_ranks_with_other_names_behind_them(published_k3: KimiTokenizer) -> None:
    recorded = [row for row in rows("families/kimi_k3_e2e") if row.get("token_ids")]
    assert recorded
    for row in recorded:
        text, (*ids, stop) = row["output_text"], row["token_ids"]
        assert published_k3.decode(ids) == text, row["case"]
        assert published_k3.decode([stop]) in ("[EOS]", "<|end_of_msg|>"), row["case"]
        if '="' not in text:  # K3's renderer encodes the attributes of a tag piece by piece
            assert published_k3.encode(text, allow_special=True) == ids, row["case"]
