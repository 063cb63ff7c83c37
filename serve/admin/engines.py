"""The engines' own metrics of speculation and memory, under the names that each engine gives them. Pure."""

import re
from collections import defaultdict
from collections.abc import Mapping

# Counters add up over the parts of an engine; of gauges the highest counts.
COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:generation_tokens_total": "written",
    "sglang:generation_tokens_total": "written",
}
GAUGES = {
    "vllm:kv_cache_usage_perc": "kv_used",
    "vllm:gpu_cache_usage_perc": "kv_used",  # before 0.10
    "sglang:token_usage": "kv_used",
    "sglang:spec_accept_length": "tokens_a_step",
}
_SAMPLE = re.compile(
    rf"^({'|'.join(map(re.escape, (*COUNTERS, *GAUGES)))})(?:\{{.*\}})? ([0-9.eE+-]+)(?: \d+)?$", re.MULTILINE
)


def figures(exposition: str) -> Mapping[str, float]:
    """Returns the figures in an engine's metrics, as far as it has them."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, text in _SAMPLE.findall(exposition):
        try:
            value = float(text)
        except ValueError:
            continue
        if name in COUNTERS:
            found[COUNTERS[name]] += value
        else:
            found[GAUGES[name]] = max(found[GAUGES[name]], value)
    return dict(found)
