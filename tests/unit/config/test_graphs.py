"""What leaves an engine's CUDA graphs is said before the engine starts."""

import pytest

from policies import facts_from_engine_args
from policies.vllm_options import full_names
from serve.config.graphs import uncovered_steps

SPEC = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}


def said(family="qwen3", opt_out=False, **args):
    args = {"speculative-config": SPEC, **{name.replace("_", "-"): value for name, value in args.items()}}
    known = {"kind": "vllm", "opt_out": opt_out, "engine_version": "0.33.0"}
    facts = facts_from_engine_args("m", "p", family, None, args, known)
    return list(uncovered_steps(facts, full_names(args)))


def test_an_opt_out_without_full_graphs_is_priced():
    (text,) = said(opt_out=True)
    assert "1.3 to 3 times" in text
    assert "cudagraph_mode: FULL" in text
    (text,) = said(opt_out=True, compilation_config='{"cudagraph_mode": "FULL_AND_PIECEWISE"}')
    assert "cudagraph_mode: FULL" in text


def test_full_graphs_are_not_advised_where_attention_falls_back_from_them():
    (text,) = said(family="kimi-k2", opt_out=True)
    assert "cudagraph_mode" not in text
    assert "a pool without speculation" in text


@pytest.mark.parametrize(
    "args",
    [
        {"opt_out": True, "compilation_config": {"cudagraph_mode": "FULL"}},
        {"opt_out": True, "enforce_eager": True},
        {"opt_out": True, "compilation_config": {"cudagraph_mode": "NONE"}},
        {"opt_out": True, "speculative_config": None},
        {"max_num_seqs": 128},
        {"max_num_seqs": 256, "compilation_config": {"max_cudagraph_capture_size": 1024}},
        {},
    ],
)
def test_nothing_is_said_where_graphs_cover_all_or_there_are_none(args):
    assert said(**args) == []


def test_seats_beyond_the_largest_graph_are_counted_in_tokens():
    (text,) = said(max_num_seqs=256)
    assert "1024 tokens a step" in text
    assert "holds 512" in text
    assert "max-num-seqs to 128" in text
    (text,) = said(max_num_seqs=64, compilation_config={"cudagraph_capture_sizes": [8, 64, 128]})
    assert "holds 128" in text
