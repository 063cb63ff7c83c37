"""The Kimi tokenizer: total over its vocabulary, deaf to control tokens in a user's text."""

from serve.tokenizer.kimi import KimiTokenizer, SpecialToken, TokenIdError

__all__ = ["KimiTokenizer", "SpecialToken", "TokenIdError"]
