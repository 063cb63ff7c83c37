"""The claims by advisory. Each yields, case by case, whether the engine shows what the advisory warns of."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from lab.claims import engine_rules, kv_cache, lagging_text, reasoning_parsers, request_fields, tool_parsers

Cases = Callable[[], Iterator[bool]]


def _parsers(*names: str, **how: Any) -> Cases:
    return lambda: chain.from_iterable(tool_parsers.broken_calls(name, **how) for name in names)


def _thoughts(*names: str) -> Cases:
    return lambda: chain.from_iterable(reasoning_parsers.broken_thoughts(name) for name in names)


def _states(*wanted: kv_cache.Mode) -> Cases:
    """Returns the reuses with a state that stands elsewhere; those that reuse nothing say nothing."""
    return lambda: (
        not reuse.sound
        for mode in kv_cache.modes()
        if mode in wanted
        for reuse in kv_cache.reuses(mode)
        if reuse.tokens
    )


_DROP, _LOOKAHEAD = kv_cache.Mode(drafter=True), kv_cache.Mode(drafter=True, lookahead=True)
CLAIMS: Mapping[str, Cases] = {
    "auto-tools-with-response-format": request_fields.tools_beside_a_format,
    "cve-2025-62426": request_fields.template_switches,
    "cve-2026-34756": request_fields.huge_n,
    "deepseek-counting-tool-parser": _parsers("deepseek_v3", "deepseek_v31"),
    "dflash-prefix-cache-on-hybrid": engine_rules.dflash_drops,
    "glm-multi-token-tool-parser": _parsers("glm45", "glm47"),
    "grammar-with-speculation-residual": engine_rules.endless_white_space,
    "guided-fields-ignored": request_fields.guided,
    "hermes-multi-token-tool-parser": _parsers("hermes"),
    "hidden-reasoning-with-grammar": request_fields.hidden_reasoning,
    "kimi-counting-tool-parser": _parsers("kimi_k2"),
    "kimi-nvfp4-missing-section-begin": _parsers("kimi_k2", prefix=""),
    "mtp-prefix-cache-on-hybrid-checkpoint": _states(_DROP),
    "mtp-prefix-cache-on-hybrid-lookahead": _states(_LOOKAHEAD),
    "mtp-prefix-cache-on-hybrid-plain": _states(_DROP, _LOOKAHEAD),
    "old-multi-token-tool-parsers": _parsers("minimax_m2"),
    "qwen-multi-token-tool-parser": _parsers("qwen3_coder"),
    "reasoning-start-marker-leaks": _thoughts("deepseek_r1", "holo2"),
    "sampling-refused-by-speculation": request_fields.refusals,
    "stop-strings-shift-markers": lagging_text.broken_by_a_stop_string,
    "two-structured-backends-in-one-engine": engine_rules.other_backend_refused,
}


def try_all() -> dict[str, Any]:
    """Returns for each advisory `[cases that show it, cases]`, or a text that says why it could not be tried."""
    return {name: _tried(cases) for name, cases in CLAIMS.items()}


def _tried(cases: Cases) -> list[int] | str:
    try:
        shown = list(cases())
    except Exception as error:  # noqa: BLE001 - another version may have moved anything; that is reported, not hidden
        return f"{type(error).__name__}: {error}"[:200]
    return [sum(shown), len(shown)]
