"""The Kimi tokenizer: total over its vocabulary, exact in streams, deaf to control tokens in a user's text."""

from serve.tokenizer.kimi import KimiTokenizer
from serve.tokenizer.layout import SpecialToken, TokenIdError
from serve.tokenizer.stream import StreamDecoder

__all__ = ["KimiTokenizer", "SpecialToken", "StreamDecoder", "TokenIdError"]
