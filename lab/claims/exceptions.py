"""What a claim can say less of than its advisory does."""

from collections.abc import Mapping

# What can be tried of an advisory with several alternatives.
SCOPES: Mapping[str, Mapping[str, str]] = {"old-multi-token-tool-parsers": {"tool_parser": "minimax_m2"}}
# Suspicions that nobody has seen, or of which one cause alone can be tried: an engine need not show them.
UNSEEN = frozenset(
    {
        "dflash-prefix-cache-on-hybrid",
        "mtp-prefix-cache-on-hybrid-checkpoint",
        "mtp-prefix-cache-on-hybrid-lookahead",
        "mtp-prefix-cache-on-hybrid-plain",
    }
)
# Causes that do harm together with others only: versions of which the advisory does not speak have them, too.
CAUSES = frozenset({"grammar-with-speculation-residual"})
