"""Kimi's full vocabulary layout, made of filler or, where its files are at hand, as it was published."""

import os
from pathlib import Path

import pytest

from models.vocabulary import KIMI_NAMED
from serve.engine.kimi_tokenizer import KimiTokenizer, SpecialToken

BASE_SIZE = 163_584
PUBLISHED = Path(os.environ.get("SPECGATE_KIMI_VOCABULARY") or Path(__file__).parents[4] / "shared" / "kimi_vocabulary")
# Kimi K3 has K2's ranks and other names in the block behind them, so that the ids of K2's turns are K3's markers.
K3_NAMED = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>")


@pytest.fixture(scope="session")
def kimi() -> KimiTokenizer:
    """The original's layout: single bytes first, then ranks that no text reaches, then the reserved block."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {b"\xff" + rank.to_bytes(3, "big"): rank for rank in range(256, BASE_SIZE)}
    return KimiTokenizer(ranks, {BASE_SIZE + offset: SpecialToken(name, flag) for offset, name, flag in KIMI_NAMED})


@pytest.fixture(scope="session")
def published() -> KimiTokenizer:
    """Kimi K2's published vocabulary, which is not part of this project."""
    if not PUBLISHED.is_dir():
        pytest.skip(f"no Kimi vocabulary at {PUBLISHED}; SPECGATE_KIMI_VOCABULARY names its folder")
    return KimiTokenizer.from_dir(PUBLISHED)


@pytest.fixture(scope="session")
def published_k3(published: KimiTokenizer) -> KimiTokenizer:
    """The same ranks with Kimi K3's names."""
    ranks = {published.token_bytes(token_id): token_id for token_id in range(published.base_size)}
    return KimiTokenizer(
        ranks, {BASE_SIZE + offset: SpecialToken(name, special=True) for offset, name in enumerate(K3_NAMED)}
    )


@pytest.fixture(scope="session")
def tiny() -> KimiTokenizer:
    """The tokenizer of the tiny stand-in, read from its folder, with merges."""
    return KimiTokenizer.from_dir(Path(__file__).parents[3] / "models" / "tiny-kimi")
