"""The metrics of many processes as one text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serve.admin.merged_metrics import figures, merge

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


def text_of(value: str, count: int) -> str:
    registry = CollectorRegistry()
    Counter("requests", "Requests, of any {kind}", ["model"], registry=registry).labels(value).inc(count)
    Counter("plain", "Without labels", registry=registry).inc(count)
    Histogram("wait_seconds", "Waits", registry=registry).observe(0.3)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=3, unique=True))
def test_every_sample_is_there_once_with_the_label_of_its_process(values: list[str]) -> None:
    texts = [text_of(value, number) for number, value in enumerate(values)]
    merged = merge(({"replica": f'r"{number}\\'}, text) for number, text in enumerate(texts))
    expected = {
        (name, labels | {("replica", f'r"{number}\\')}): value
        for number, text in enumerate(texts)
        for (name, labels), value in samples(text).items()
    }
    assert samples(merged) == expected


def test_each_metric_is_described_once_and_its_samples_stand_together() -> None:
    merged = merge(({"replica": str(number)}, text_of("m", number)) for number in range(3))
    assert merged.count("# TYPE requests_total counter") == 1
    names = [line.partition("{")[0] for line in merged.splitlines() if line.startswith("requests_total")]
    lines = merged.splitlines()
    first = lines.index(next(line for line in lines if line.startswith("requests_total")))
    assert [line.partition("{")[0] for line in lines[first : first + 3]] == names == ["requests_total"] * 3


def test_a_process_without_metrics_adds_nothing() -> None:
    assert merge([({"replica": "a"}, ""), ({"replica": "b"}, "")]) == ""


def test_a_line_that_is_cut_off_keeps_no_other_process_from_being_read() -> None:
    merged = merge([({"replica": "a"}, "# TYPE up gauge\nup{"), ({"replica": "b"}, "# TYPE up gauge\nup 1\n")])
    assert 'up{replica="b"} 1\n' in merged


def test_counters_add_up_over_an_engines_parts_and_of_gauges_the_highest_counts() -> None:
    assert figures(VLLM) == {"drafts": 120, "drafted": 300, "accepted": 180, "kv_used": 0.75, "written": 4000}


def test_sglang_tells_the_length_itself() -> None:
    text = 'sglang:spec_accept_length{tp_rank="0"} 2.7\nsglang:token_usage{tp_rank="0"} 0.5\n'
    assert figures(text) == {"tokens_a_step": 2.7, "kv_used": 0.5}


def test_an_engine_that_says_nothing_or_nonsense_has_no_figures() -> None:
    assert figures("") == figures("<html>not found</html>") == figures("vllm:kv_cache_usage_perc e-e\n") == {}


@pytest.mark.parametrize("value", ["1e999", "-1", "1e308"])
def test_what_nothing_can_count_is_no_figure(value: str) -> None:
    assert "written" not in figures(VLLM.replace("4000", value))
