"""Kimi's full vocabulary layout, made of filler: 163,584 ranks that are nobody's, and the 256 reserved ids."""

from pathlib import Path

import pytest

from models.vocabulary import KIMI_NAMED
from serve.tokenizer import KimiTokenizer, SpecialToken

BASE_SIZE = 163_584


@pytest.fixture(scope="session")
def kimi() -> KimiTokenizer:
    """The original's layout: single bytes first, then ranks that no text reaches, then the reserved block."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {b"\xff" + rank.to_bytes(3, "big"): rank for rank in range(256, BASE_SIZE)}
    return KimiTokenizer(ranks, {BASE_SIZE + offset: SpecialToken(name, flag) for offset, name, flag in KIMI_NAMED})


@pytest.fixture(scope="session")
def tiny() -> KimiTokenizer:
    """The tokenizer of the tiny stand-in, read from its folder, with merges."""
    return KimiTokenizer.from_dir(Path(__file__).parents[3] / "models" / "tiny-kimi")
