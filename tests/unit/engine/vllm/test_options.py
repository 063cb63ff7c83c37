"""Facts from a configuration's engine arguments are those that vLLM itself makes of them."""

import json
import re
import shlex
import warnings
from argparse import ArgumentError
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from policies import facts_from_engine_args
from policies.command_facts import facts_of_command
from policies.command_line import read_command
from policies.facts import METHODS, UNKNOWN, method_of
from policies.vllm_options import READ, SINCE_0_33, WITHOUT_EFFECT, full_names, own_name
from serve.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.config.speculative import SpeculativeMethod
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from serve.engine.vllm.host import cli_args, parse_args

    make_arg_parser = cli_args().make_arg_parser

COMMANDS = Path(__file__).parents[2] / "policies" / "public_commands.yaml"
DRAFTER = "models/tiny-qwen-draft"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
ARGS: dict[str, dict[str, Any]] = {
    "whole": {"speculative-config": NGRAM},
    "as JSON": {"speculative-config": json.dumps(NGRAM)},
    "short": {"sc": NGRAM},
    "single options": {"spec-method": "ngram", "spec-tokens": 3},
    "single options with underscores": {"spec_method": "ngram", "spec_tokens": 3},
    "a drafter by a single option": {"spec-model": DRAFTER, "spec-tokens": 3},
    "single options beside the whole": {"speculative-config": {"num_speculative_tokens": 3}, "spec-method": "ngram"},
    "members": {"speculative-config.method": "ngram", "speculative-config.num_speculative_tokens": 3},
    "a dashed member": {"speculative-config": {"method": "ngram", "num-speculative-tokens": 3}},
    "no speculation": {"speculative-config": None},
    "no prefix caching": {"no-enable-prefix-caching": True},
    "prefix caching, doubly negated": {"no-enable-prefix-caching": False},
    "prefix caching as a text": {"enable-prefix-caching": True},
    "both, the last one counts": {"enable-prefix-caching": True, "no-enable-prefix-caching": True},
    "synchronous": {"async-scheduling": False},
    "another type of cache": {"kv-cache-dtype": "fp8"},
    "a grammar's backend by member": {"structured-outputs-config.backend": "guidance"},
    "a grammar's backend": {"structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True}},
    "a reasoning parser in the grammar's part": {"structured-outputs-config": {"reasoning_parser": "qwen3"}},
    "a reasoning parser": {"reasoning-parser": "qwen3"},
    "a connector": {"kv-transfer-config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "an offloaded cache": {"kv-offloading-size": 1},
    "a tool parser": {"tool-call-parser": "hermes"},
    "other configuration": {"additional-config": {"speculative_config": NGRAM}},
    "overridden architecture": {"hf-overrides": {"architectures": ["Qwen3ForCausalLM"]}},
    "optimisation": {"optimization-level": 3},
    "performance": {"performance-mode": "interactivity"},
    "lookup bounds": {"speculative-config": {**NGRAM, "prompt_lookup_min": 2, "prompt_lookup_max": 4}},
    "ngram by model": {"speculative-config": {"model": "ngram", "num_speculative_tokens": 3}},
    "lossy": {"spec-model": DRAFTER, "spec-tokens": 2, "speculative-config": {"rejection_sample_method": "block"}},
}  # fmt: skip


def _options() -> set[str]:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
    strings = {string for action in parser._actions for string in action.option_strings}  # argparse has no other list
    return {string[2:].replace("-", "_") for string in strings if string.startswith("--")}


def test_every_option_of_the_installed_engine_is_read_or_listed_as_without_effect() -> None:
    names = {own_name(name)[0] for name in _options()}
    missing = (READ | WITHOUT_EFFECT | {"config"}) - names
    assert names <= READ | WITHOUT_EFFECT | {"config"}
    assert missing in (frozenset(), SINCE_0_33)


def test_every_short_option_means_what_it_means_to_the_engine() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
    for action in parser._actions:
        for string in action.option_strings:
            if not string.startswith("--") and string != "-h":
                assert list(full_names({string: None})) == [action.dest], string


def test_every_method_of_the_installed_engine_is_classified() -> None:
    def literals(of: Any) -> list[str]:
        return [of] if isinstance(of, str) else [name for each in get_args(of) for name in literals(each)]

    names = literals(SpeculativeMethod)
    assert len(names) > 10
    assert {name: method_of(name) for name in names if method_of(name) in (None, UNKNOWN)} == {}
    assert {method_of(name) for name in names} <= METHODS


@pytest.mark.parametrize("args", ARGS.values(), ids=ARGS)
def test_facts_are_those_of_the_engines_own_configuration(args: dict[str, Any]) -> None:
    given = {"model": "models/tiny-qwen", "max-model-len": 512, "enforce-eager": True, **args}
    facts = facts_from_engine_args("m", "p", "qwen3", None, given, {})
    parsed = parse_args(given, ("m",), "key")
    config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    spec, grammar, transfer = config.speculative_config, config.structured_outputs_config, config.kv_transfer_config
    assert facts.method == (spec.method if spec else None)
    assert facts.num_speculative_tokens == (spec.num_speculative_tokens if spec else None)
    assert facts.tool_parser == (parsed.tool_call_parser or "none")
    assert facts.reasoning_parser == (grammar.reasoning_parser or "none")
    assert facts.prefix_caching == config.cache_config.enable_prefix_caching
    assert facts.async_scheduling in (None, config.scheduler_config.async_scheduling)
    assert facts.runner == ("v2" if config.use_v2_model_runner else "v1")
    assert facts.settings["kv_cache_dtype"] == config.cache_config.cache_dtype
    assert facts.settings["structured_outputs_backend"] == grammar.backend
    assert facts.settings["disable_any_whitespace"] == grammar.disable_any_whitespace
    assert facts.settings["pipeline_parallel_size"] == config.parallel_config.pipeline_parallel_size
    assert facts.settings["kv_connector"] == (transfer.kv_connector if transfer else "none")
    if spec and spec.method == "ngram":
        bounds = (facts.settings["prompt_lookup_min"], facts.settings["prompt_lookup_max"])
        assert bounds == (spec.prompt_lookup_min, spec.prompt_lookup_max)
    assert facts.settings["rejection_sample_method"] == (spec.rejection_sample_method if spec else "standard")


@pytest.mark.parametrize(
    "short",
    ["speculative-conf", "speculative", "spec-met", "enable-prefix-c", "no-enable-prefix-c", "async-sched", "tool-call",
     "tool-call-p", "structured-outputs", "pipeline-parallel", "kv-transfer", "kv-cache-dty", "quant", "config"],
)  # fmt: skip
def test_what_the_policy_refuses_the_engine_is_not_given_either(short: str) -> None:
    with pytest.raises(ConfigError, match=r"abbreviation|one by one"):
        parse_args({"model": "models/tiny-qwen", short: True}, ("m",), "key")


def test_an_option_that_the_engine_does_not_have_is_not_completed_to_one_that_it_has() -> None:
    with pytest.raises(ConfigError, match="does not know"):
        parse_args({"model": "models/tiny-qwen", "speculative-configuration": "x"}, ("m",), "key")


SAME_NAME = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
    "kv_cache_dtype", "enable_expert_parallel", "max_num_seqs", "tokenizer_mode",
)  # fmt: skip


def test_public_command_lines_say_to_the_engine_what_is_read_off_them() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
    compared = []
    for case in yaml.safe_load(COMMANDS.read_text(encoding="utf-8")):
        try:
            parsed = parser.parse_args(_own_words(case["command"]))
        except (ArgumentError, SystemExit, ValueError):
            continue  # options of other versions, or values that only a shell has
        facts = facts_of_command(read_command([case["command"]]))
        spec = parsed.speculative_config or {}
        said = {
            "method": method_of(spec["method"]) if "method" in spec else None,
            "num_speculative_tokens": spec.get("num_speculative_tokens"),
            "tool_parser": parsed.tool_call_parser or "none",
            "reasoning_parser": parsed.reasoning_parser or "none",
            "prefix_caching": parsed.enable_prefix_caching,
            "async_scheduling": parsed.async_scheduling,
        }
        for name, value in said.items():
            assert value in (None, getattr(facts, name)), (case["source"], name)
        for name in SAME_NAME:
            assert facts.settings.get(name) in (None, getattr(parsed, name)), (case["source"], name)
        connector = parsed.kv_transfer_config and parsed.kv_transfer_config.kv_connector
        assert connector in (None, facts.settings["kv_connector"])
        compared.append(case["source"])
    assert len(compared) >= 25, compared


def _own_words(command: str) -> list[str]:
    """Returns the words behind `vllm serve`, split as a shell does.

    Raises:
        ValueError: The engine is started otherwise.
    """
    words = shlex.split(re.sub(r"\\\s*\n", " ", command), comments=True)
    at = words.index("serve")
    if "vllm" not in " ".join(words[:at]):
        raise ValueError("not `vllm serve`")
    return list(takewhile(lambda word: not re.match(r"[|&;<>]|\d>", word), words[at + 1 :]))
