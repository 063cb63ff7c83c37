"""Facts that contradict each other are found by name: a drafter of another model, weights of another version."""

from pathlib import Path
from typing import Any

import pytest

from policies import PoolFacts, facts_from_engine_args
from policies.vllm_options import KNOWN, full_names
from serve.config.gateway import GatewayConfig
from serve.config.lint import (
    contradictions,
    missing_folders,
    seat_findings,
    uncovered_steps,
    unknown_options,
    wrong_pair,
)


@pytest.mark.parametrize(
    ("family", "version", "drafter", "wrong"),
    [
        ("kimi-k2", "2", "/model_files/Kimi-K2.5-Thinking-Eagle3", False),
        ("kimi-k2", "2.5", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.6", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.5", "Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.5-eagle3", True),
        ("kimi-k2", "2.6", "AQ-MedAI/Kimi-K26-eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.6-eagle3.1-mla", False),
        ("kimi-k2", "2.6", "~/hub/models--lightseekorg--kimi-k2.5-eagle3/snapshots/abc", True),
        ("qwen3-coder", None, "org/Qwen3-0.6B", False),
        ("qwen3.6", "3.6", "org/Qwen3.5-eagle3", True),
        ("qwen3", None, "org/Kimi-K2.5-Eagle3", True),
        ("kimi-k2", "2.6", "models/tiny-kimi-eagle3", False),
        ("llama", None, "org/Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "none", False),
        ("kimi-k2", "2.6", None, False),
    ],
)
def test_a_pair_is_wrong_when_the_drafter_is_for_another_series_or_version(family, version, drafter, wrong):
    facts = PoolFacts("m", "p", family=family, model_version=version, drafter=drafter, method="eagle3")
    assert (wrong_pair(facts) is not None) is wrong


@pytest.mark.parametrize(
    ("methods", "wrong"),
    [(("none", "eagle3"), True), (("none", "none"), False), (("mtp", "qwen3_next_mtp"), False)],
)
def test_one_engine_in_two_pools_has_one_method(methods, wrong):
    pools = {name: remote(None, method=name_of) for name, name_of in zip("ab", methods, strict=True)}
    config = GatewayConfig.parse({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}}})
    assert [(pool, "the same engine" in text) for _, pool, text in contradictions(config)] == [("b", True)] * wrong


def found(pool, family="kimi-k2", version="2.6", **model):
    values = {"family": family, "version": version, "grammar": "kimi_k2", **model, "pools": {"p": pool}}
    return [text for _, _, text in contradictions(GatewayConfig.parse({"models": {"m": values}}))]


def remote(name, **facts):
    return {"kind": "remote", "url": "http://h:1", "served_name": name, "facts": {"method": "none", **facts}}


@pytest.mark.parametrize(
    ("said", "variant"), [("FP8", "fp8"), ("modelopt_fp4", "nvfp4"), ("NVFP4", "nvfp4"), ("int8", "int8")]
)
def test_a_variant_counts_however_it_is_called(said, variant):
    pools = {"a": remote(f"org/Kimi-K2.6-{variant}"), "b": remote(None, quantization=said)}
    model = {"family": "kimi-k2", "version": "2.6", "quantization": said, "pools": pools}
    config = GatewayConfig.parse({"models": {"m": {**model, "grammar": "kimi_k2"}}})
    assert list(contradictions(config)) == []
    assert [facts.quantization for facts in config.pool_facts()] == [variant, variant]


def test_a_wrong_pair_says_what_it_breaks_and_what_to_do():
    spec = {"method": "eagle3", "model": "org/kimi-k2.6-eagle3", "num_speculative_tokens": 3}
    (text,) = found({"engine_args": {"model": "org/Kimi-K2.5", "speculative-config": spec}}, version="2.5")
    assert "cut tool-call arguments" in text
    assert "correct `family` and `version`" in text


@pytest.mark.parametrize(
    ("name", "version", "wrong"),
    [
        ("/model_files/h20/Kimi-K2.5", "2.6", True),
        ("moonshotai/Kimi-K2.6", "2.6", False),
        ("moonshotai/Kimi-K2.6", "2.5", True),
        ("moonshotai/Kimi-K2.6", "2", True),
        ("kimi-k2", "2.6", False),
        ("Qwen/Qwen3-32B", "2.6", True),
        ("my-model", "2.6", False),
        ("moonshotai/Kimi-K2.6", None, False),
        ("~/hub/models--moonshotai--Kimi-K2.5/snapshots/abc", "2.6", True),
    ],
)
def test_weights_whose_name_tells_another_version_contradict_the_facts(name, version, wrong):
    assert bool(found(remote(name), version=version)) is wrong
    assert bool(found({"engine_args": {"model": name}}, version=version)) is wrong
    assert not found(remote(name, model_version=version or "2.6"), version=version)


@pytest.mark.parametrize(
    ("name", "stated", "wrong"),
    [
        ("nvidia/Kimi-K2.6-NVFP4", {}, True),
        ("nvidia/Kimi-K2.6-NVFP4", {"quantization": "nvfp4"}, False),
        ("nvidia/Kimi-K2.6-NVFP4", {"quantization": "fp8"}, True),
        ("org/Kimi-K2.6", {"quantization": "fp8"}, False),
    ],
)
def test_weights_whose_name_tells_another_variant_contradict_the_facts(name, stated, wrong):
    assert bool(found(remote(name), **stated)) is wrong
    assert not found(remote(name, quantization="none"), **stated)


ROOT = Path(__file__).parents[3]


def configured(args: dict[str, Any], kind: str = "vllm") -> GatewayConfig:
    pool = {"kind": kind, "engine_args": args}
    return GatewayConfig.parse({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}})


def test_every_option_that_vllm_has_passes() -> None:
    args = {name.replace("_", "-"): None for name in KNOWN - {"speculative_config"}}
    assert list(unknown_options(configured(args))) == []


@pytest.mark.parametrize(
    ("option", "meant"),
    [("max-model-length", "max-model-len"), ("tensor_paralel_size", "tensor-parallel-size"), ("no-such-thing", None)],
)
def test_an_option_that_no_vllm_has_is_named_with_the_one_that_was_meant(option: str, meant: str | None) -> None:
    ((model, pool, text),) = unknown_options(configured({option: 1}))
    assert (model, pool) == ("m", "p")
    assert option.removeprefix("no-").replace("_", "-") in text
    assert ("did you mean" in text) == (meant is not None)
    assert meant is None or repr(meant) in text


@pytest.mark.parametrize("path", ["/no/such/folder", "./no/such", "models/tiny-nobody", "no/such/deep/folder"])
def test_a_folder_that_is_not_here_is_told_with_its_path(path: str) -> None:
    drafter = {"method": "eagle3", "model": path, "num_speculative_tokens": 2}
    found = list(missing_folders(configured({"model": path, "speculative-config": drafter})))
    assert [text for _, _, text in found] == [
        f"the folder of its {what}, {path}, is not on this machine" for what in ("model", "drafter")
    ]


@pytest.mark.parametrize("path", ["models/tiny-kimi", str(ROOT / "models/tiny-qwen"), "Qwen/Qwen3.6-27B", "gpt2"])
def test_a_folder_that_is_here_and_a_name_on_a_hub_pass(path: str) -> None:
    assert list(missing_folders(configured({"model": path}))) == []


def test_configurations_that_ship_have_no_unknown_option() -> None:
    for file in sorted((ROOT / "deploy").glob("**/*.yaml")):
        if file.parent.name in ("deploy", "overlays"):
            assert list(unknown_options(GatewayConfig.load(file))) == [], file


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


DEPLOY = Path(__file__).parents[3] / "deploy"


def findings(taken: int, kind: str = "vllm", **args: Any) -> list[tuple[str, str]]:
    pool = {"kind": kind, "max_ongoing_requests": taken, **({"engine_args": args} if args else {})}
    model = {"family": "kimi-k2", "grammar": "kimi_k2", "pools": {"p": pool}}
    config = GatewayConfig.parse({"models": {"m": model}})
    return [(level, message) for _, _, level, message in seat_findings(config)]


def test_more_requests_than_seats_is_a_warning_that_says_how_many_wait_inside() -> None:
    ((level, message),) = findings(64, **{"max-num-seqs": 25})
    assert level == "warning"
    assert "up to 39 wait" in message
    assert "set max_ongoing_requests to 25" in message


def test_fewer_requests_than_seats_is_worth_a_note() -> None:
    ((level, message),) = findings(20, max_num_seqs=25)
    assert level == "info"
    assert "5 of its engine's 25 seats" in message


def test_as_many_requests_as_seats_is_right_over_all_data_parallel_ranks() -> None:
    assert findings(50, **{"max-num-seqs": 25, "data-parallel-size": 2}) == []


def test_a_simulated_engine_states_its_seats_in_its_own_settings() -> None:
    pool = {"kind": "sim", "sim": {"max_num_seqs": 16}}
    config = GatewayConfig.parse(
        {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": pool, "q": {"kind": "sim"}}}}}
    )
    assert [model.engine_seats(pool) for _, model, pool, _ in config.each_pool()] == [16, None]


@pytest.mark.parametrize("args", [{}, {"max-num-seqs": "many"}])
def test_nothing_is_said_of_an_engine_whose_seats_are_unknown(args: dict[str, Any]) -> None:
    assert findings(64, **args) == []


def test_a_simulated_pool_has_no_seats_to_compare() -> None:
    assert findings(64, kind="sim") == []


@pytest.mark.parametrize("path", [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("overlays/*.yaml")], ids=lambda path: path.name)
def test_what_ships_takes_what_its_engines_run(path: Path) -> None:
    assert list(seat_findings(GatewayConfig.load(path))) == []
