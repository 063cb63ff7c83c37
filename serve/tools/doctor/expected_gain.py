"""Estimates the gain of speculation from published acceptance lengths (tokens per step) of similar configurations."""

from fnmatch import fnmatchcase

from policies import PoolFacts

_GOLDEN = "InferenceX golden acceptance lengths, SPEED-Bench coding, thinking on"
# (family, method, tokens per step with 1, 2, ... drafted tokens, source)
_PUBLISHED: tuple[tuple[str, str, tuple[float, ...], str], ...] = (
    ("kimi*", "eagle3", (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77), f"{_GOLDEN}, Kimi-K2.5-NVFP4"),
    ("qwen3.[5-9]*", "mtp", (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21), f"{_GOLDEN}, Qwen3.5-397B"),
)
_TOOL_TEXT = "tool calls gain most: 3.7-3.8 tokens per step with 3 drafted (model card of kimi-k2.5-eagle3, BFCL)"


def expected_gain(facts: PoolFacts) -> str | None:
    """Returns a sentence on the gain of speculation on such a pool, or None if nothing is published."""
    drafted = facts.num_speculative_tokens
    for family, method, lengths, source in _PUBLISHED:
        if fnmatchcase(facts.family or "", family) and facts.method == method and drafted:
            length = lengths[min(drafted, len(lengths)) - 1]
            note = f"; {_TOOL_TEXT}" if method == "eagle3" else ""
            return f"about {length:.1f} tokens per step with {drafted} drafted ({source}){note}"
    return None
