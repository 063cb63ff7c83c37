"""What engines say of their drafts and memory, read off their metrics."""

from serve.admin.engines import figures

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a}b c"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3e+02
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 180.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 90.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total 4000
"""


def test_counters_add_up_over_an_engines_parts_and_of_gauges_the_highest_counts() -> None:
    assert figures(VLLM) == {"drafts": 120, "drafted": 300, "accepted": 180, "kv_used": 0.75, "written": 4000}


def test_sglang_tells_the_length_itself() -> None:
    text = 'sglang:spec_accept_length{tp_rank="0"} 2.7\nsglang:token_usage{tp_rank="0"} 0.5\n'
    assert figures(text) == {"tokens_a_step": 2.7, "kv_used": 0.5}


def test_an_engine_that_says_nothing_or_nonsense_has_no_figures() -> None:
    assert figures("") == figures("<html>not found</html>") == figures("vllm:kv_cache_usage_perc e-e\n") == {}
