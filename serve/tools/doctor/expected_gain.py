"""What speculation is worth: published acceptance lengths, tokens a step, of configurations like a pool's."""

from fnmatch import fnmatchcase

from policies import PoolFacts

_GOLDEN = "InferenceX golden acceptance lengths, SPEED-Bench coding, thinking on"
# (family, method) -> tokens a step for 1, 2, ... drafted tokens, and where it stands.
_PUBLISHED: tuple[tuple[str, str, tuple[float, ...], str], ...] = (
    ("kimi*", "eagle3", (1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77), f"{_GOLDEN}, Kimi-K2.5-NVFP4"),
    ("qwen3.[5-9]*", "mtp", (1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21), f"{_GOLDEN}, Qwen3.5-397B"),
)
_TOOL_TEXT = "tool calls draft best: 3.7-3.8 tokens a step with 3 drafted (model card of kimi-k2.5-eagle3, BFCL)"


def expected_gain(facts: PoolFacts) -> str | None:
    """A sentence on what speculation gains on such a pool, or None where nothing is published."""
    drafted = facts.num_speculative_tokens
    for family, method, lengths, source in _PUBLISHED:
        if fnmatchcase(facts.family or "", family) and facts.method == method and drafted:
            length = lengths[min(drafted, len(lengths)) - 1]
            note = f"; {_TOOL_TEXT}" if method == "eagle3" else ""
            return f"about {length:.1f} tokens a step with {drafted} drafted ({source}){note}"
    return None
