"""Engine command lines as people write them, and the facts that are read off them."""

from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import policies
from policies import PolicyError, facts_from_engine_args, load_advisories, sglang_options
from policies.command_facts import facts_of_command, stated_by
from policies.command_line import read_command, with_file
from policies.freshness import newest_checked
from policies.model_families import model_of

PUBLIC = yaml.safe_load((Path(__file__).parent / "public_commands.yaml").read_text(encoding="utf-8"))


def facts(*words, **stated):
    return facts_of_command(read_command(words), stated)


@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case["source"])
def test_every_fact_of_a_public_command_line_is_right_or_unknown(case):
    found = facts(case["command"])
    told = {name: getattr(found, name) for name in case["facts"] if name != "settings"}
    expected = {name: value for name, value in case["facts"].items() if name != "settings"}
    assert told == expected
    settings = case["facts"].get("settings", {})
    assert {name: found.settings.get(name) for name in settings} == settings


def test_there_are_enough_public_lines_of_both_engines_to_mean_something():
    engines = [case["facts"]["engine"] for case in PUBLIC]
    assert len(PUBLIC) >= 160
    assert engines.count("sglang") >= 50


def test_every_family_that_an_advisory_names_is_told_by_names_of_weights():
    weights = """
        moonshotai/Kimi-K2.6 deepseek-ai/DeepSeek-V4-Pro deepseek-ai/DeepSeek-V3.2 google/gemma-4-31B-it
        openai/gpt-oss-20b zai-org/GLM-5.3 zai-org/GLM-4.5V zai-org/GLM-4.6V-Flash MiniMaxAI/MiniMax-M3
        XiaomiMiMo/MiMo-V2-Flash Qwen/Qwen3.8-Flash-Next Qwen/Qwen2.5-VL-7B Qwen/Qwen3-Omni-30B nvidia/Nemotron-H-8B
        stepfun-ai/Step-3.5-Flash LGAI-EXAONE/EXAONE-4.0-32B ibm-granite/granite-4.0-h-small tiiuae/Falcon-H1-7B
        ibm-ai-platform/Bamba-9B ai21labs/Jamba-1.5 Zyphra/Zamba2-7B pfnet/plamo-2-8b
    """
    families = [named.family for name in weights.split() if (named := model_of(name))]
    shipped = load_advisories(Path(policies.__file__).parent / "advisories")
    named = [each for advisory in shipped for condition in advisory.affects for each in _patterns(condition)]
    assert [each for each in named if not any(fnmatch(family, each) for family in families)] == []


def _patterns(condition):
    family = condition.get("family", ())
    return [family] if isinstance(family, str) else family if isinstance(family, list) else ()


@pytest.mark.parametrize("option", sorted(sglang_options.READ))
def test_every_option_of_sglang_that_counts_as_read_tells_something(option):
    line = f"sglang serve --speculative-algorithm EAGLE3 --{option.replace('_', '-')}"
    told = facts("sglang serve --speculative-algorithm EAGLE3")
    values = (
        "",
        " 7",
        " npu",
        " nvfp4",
        " decode",
        " DFLASH",
        " 1 --speculative-num-steps 2",
        " 2 --speculative-eagle-topk 1",
    )
    assert any(facts(line + value) != told for value in values)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--speculative-alg EAGLE3 --speculative-draft-model a/b", "method", "eagle3"),
        ("--speculative-alg DFLASH", "method", "dflash"),
        ("--disable-radix", "prefix_caching", False),
        ("--tool-call hermes", "tool_parser", "hermes"),
        ("--config server.yaml", "method", "unknown"),
        ("--config server.yaml", "prefix_caching", None),
        ("--modelopt-quant nvfp4", "quantization", "nvfp4"),
    ],
)
def test_sglangs_options_are_read_as_its_own_parser_reads_them(words, name, value):
    assert getattr(facts(f"sglang serve --model-path Qwen/Qwen3-8B {words}"), name) == value


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("--attn-dp-size 8", "enable_dp_attention"),
        ("--enable-hicache", "enable_hierarchical_cache"),
        ("--lora-paths a=b", "enable_lora"),
    ],
)
def test_another_option_of_sglang_for_the_same_setting_is_no_other_setting(words, setting):
    assert facts(f"sglang serve --model-path Qwen/Qwen3-8B {words}").settings[setting] is True


def test_the_options_of_sglang_are_those_of_the_newest_version_that_was_checked():
    shipped = load_advisories(Path(policies.__file__).parent / "advisories")
    assert newest_checked(shipped)["sglang"] == sglang_options.VERSION


MEMBERS = '{"method":"eagle3","model":"a/b","num_speculative_tokens":3}'
SHORTER = '{"method":"eagle","model":"d","max_model_len":16384}'
FLAGS = "--spec-method eagle3 --spec-model a/b --spec-tokens 3"


@pytest.mark.parametrize(
    "line",
    [
        f"vllm serve Qwen/Qwen3-8B {FLAGS}",
        f"sudo -E nohup /opt/venv/bin/vllm serve Qwen/Qwen3-8B -sc '{MEMBERS}' &",
        "vllm serve --trust-remote-code Qwen/Qwen3-8B --speculative-config.method=eagle3 "
        "--speculative-config.model=a/b --speculative-config.num-speculative-tokens=3",
        f"bash -c 'pip install x && exec vllm serve Qwen/Qwen3-8B {FLAGS}; sleep 1'",
        f"docker compose run --rm engine vllm serve Qwen/Qwen3-8B --speculative-conf '{MEMBERS}'",
        f"docker run -e A=b vllm/vllm-openai Qwen/Qwen3-8B {FLAGS}",
        "DRAFTER=a/b; vllm serve Qwen/Qwen3-8B --spec-method eagle3 --spec-model ${DRAFTER} --spec-tokens 3 | tee log",
        f"python -m vllm.entrypoints.cli.main serve Qwen/Qwen3-8B --served-model-name one two {FLAGS}",
        f"numactl -N 0 uv run --with vllm vllm serve --model Qwen/Qwen3-8B {FLAGS} 2>&1",
    ],
)
def test_one_engine_is_read_alike_however_it_is_started(line):
    found = facts(line)
    assert (found.engine, found.family, found.method, found.drafter, found.num_speculative_tokens) == (
        "vllm", "qwen3", "eagle3", "a/b", 3,
    )  # fmt: skip


def test_words_are_read_like_one_text():
    words = [
        "vllm",
        "serve",
        "Qwen/Qwen3-8B",
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 4}',
    ]
    assert facts(*words).method == "ngram"
    assert facts(*words).num_speculative_tokens == 4


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ('vllm serve m --speculative-config "$SPEC"', "method"),
        ("vllm serve m --tool-call-parser ${PARSER}", "tool_parser"),
        ("vllm serve m --reasoning-parser $R", "reasoning_parser"),
        ("python -m sglang.launch_server --model-path m --speculative-algorithm $ALGO", "method"),
        ("vllm serve $MODEL", "family"),
        ("docker run vllm/vllm-openai:nightly --model m", "engine_version"),
        ("vllm serve m --spec-tokens 2 --spec-model some/folder", "method"),
        ("vllm serve some/model", "hybrid"),
        ("vllm serve Qwen/Qwen3-8B", "runner"),
        ("vllm serve Qwen/Qwen3-8B", "async_scheduling"),
        ("vllm serve Qwen/Qwen3-8B $EXTRA_ARGS", "method"),
        ('vllm serve Qwen/Qwen3-8B "${ARGS[@]}"', "tool_parser"),
        ('vllm serve "$@"', "method"),
        ("vllm serve --model Qwen/Qwen3-8B --port 1 $MORE", "prefix_caching"),
        ("bash -c 'exec vllm serve \"$@\"'", "method"),
        (
            "sglang serve --model-path Qwen/Qwen3-8B --speculative-algorithm EAGLE --speculative-draft-model-path <d>",
            "method",
        ),
        ("sglang serve --model-path m --speculative-algorithm EAGLE3 --speculative-draft $D", "drafter"),
        (
            """vllm serve m --speculative-config '{"method": "$M", "model": "d", "num_speculative_tokens": 3}'""",
            "method",
        ),
        ("""vllm serve m --speculative-config '{"model": "$D", "num_speculative_tokens": 3}'""", "method"),
        ("""vllm serve m --speculative-config '{"method": "eagle3", "model": "$D"}'""", "drafter"),
        ("vllm serve m --speculative-config.method eagle3 --speculative-config.model $D", "drafter"),
        ("vllm serve m --spec-method eagle3 --spec-model $D --spec-tokens 3", "drafter"),
        ("vllm serve Qwen/Qwen3-8B --spec-model $D --spec-tokens 3", "method"),
        ("vllm serve Qwen/Qwen3-8B --config engine.yaml", "method"),
        ("vllm serve Qwen/Qwen3-8B --config=engine.yaml", "tool_parser"),
    ],
)
def test_what_the_line_leaves_open_is_unknown(line, unknown):
    value = getattr(facts(line), unknown)
    assert value == ("unknown" if unknown == "method" else None)


@pytest.mark.parametrize(
    ("line", "unknown"),
    [
        ('vllm serve m --kv-transfer-config "$KV"', "kv_connector"),
        ("vllm serve m --kv-offloading-size $SIZE", "kv_connector"),
        ("vllm serve m --compilation-config $C", "cudagraph_mode"),
        ("vllm serve m --structured-outputs-config.backend $B", "structured_outputs_backend"),
        ("vllm serve m --tensor-parallel-size $(TP)", "tensor_parallel_size"),
        (f"vllm serve m --spec-tokens 2 --speculative-config '{SHORTER}'", "drafter_context_shorter"),
        (f"vllm serve m --max-model-len $LENGTH --speculative-config '{SHORTER}'", "drafter_context_shorter"),
        ('vllm serve m --speculative-config "$SPEC"', "dynamic_draft_length"),
        ("""vllm serve m --kv-transfer-config '{"kv_connector_extra_config": {"a": "$A"}}'""", "kv_connector"),
        ("vllm serve m $MORE", "pipeline_parallel_size"),
        ("python -m sglang.launch_server --model-path m --tp $TP", "tensor_parallel_size"),
        ("python -m sglang.launch_server --model-path m --disaggregation-mode $ROLE", "kv_connector"),
    ],
)
def test_a_setting_that_a_variable_decides_is_unknown_also_as_a_stated_fact(line, unknown):
    command = read_command([line])
    assert facts_of_command(command).settings.get(unknown) is None
    assert (
        facts_from_engine_args("m", "p", None, None, {}, {"kind": "remote", **stated_by(command)}).settings.get(unknown)
        is None
    )


@pytest.mark.parametrize(
    "line",
    [
        f"bash -c 'exec vllm serve \"$@\"' -- Qwen/Qwen3-8B {FLAGS}",
        f"sh -c 'sleep 1; exec vllm serve Qwen/Qwen3-8B $@' engine {FLAGS}",
        f'ARGS="{FLAGS}"; vllm serve Qwen/Qwen3-8B $ARGS',
        f'export ARGS="{FLAGS}"\nvllm serve Qwen/Qwen3-8B ${{ARGS}} --port 1',
    ],
)
def test_words_that_a_shell_puts_in_are_read(line):
    found = facts(line)
    assert (found.family, found.method, found.drafter, found.num_speculative_tokens) == ("qwen3", "eagle3", "a/b", 3)
    assert found.tool_parser == "none"


@pytest.mark.parametrize(
    "options",
    [
        """--speculative-config '{"model": "${DRAFTER}", "method": "eagle3", "num_speculative_tokens": 3}'""",
        "-sc.model $DRAFTER -sc.method eagle3 -sc.num_speculative_tokens 3",
    ],
)
def test_only_the_drafter_is_unknown_where_a_variable_holds_it_alone(options):
    found = facts(f"vllm serve Qwen/Qwen3-32B {options}")
    assert (found.method, found.num_speculative_tokens, found.drafter) == ("eagle3", 3, None)
    assert found.settings["rejection_sample_method"] is not None


def test_what_is_said_beside_words_that_are_not_told_is_read_all_the_same():
    found = facts(f"vllm serve Qwen/Qwen3-8B {FLAGS} --tool-call-parser hermes -tp 4 --no-enable-prefix-caching $MORE")
    assert (found.method, found.tool_parser, found.prefix_caching) == ("eagle3", "hermes", False)
    assert found.settings["tensor_parallel_size"] == 4
    assert (found.reasoning_parser, found.async_scheduling, found.runner) == (None, None, None)


@pytest.mark.parametrize(
    ("line", "platform"),
    [
        ("vllm serve m", "cuda"),
        ("CUDA_VISIBLE_DEVICES=0 vllm serve m --device cuda", "cuda"),
        ("vllm serve m --device hpu", "gaudi"),
        ("VLLM_ROCM_USE_AITER=1 vllm serve m", "rocm"),
        ("env HIP_VISIBLE_DEVICES=0 vllm serve m", "rocm"),
        ("export HCCL_BUFFSIZE=1024; vllm serve m", "ascend"),
        ("vllm serve m --quantization ascend", "ascend"),
        ("PT_HPU_LAZY_MODE=1 vllm serve m", "gaudi"),
        ("ZE_AFFINITY_MASK=0 vllm serve m", "xpu"),
        ("python -m sglang.launch_server --model-path m --device npu", "ascend"),
        ("sglang serve --model-path m --attention-backend aiter", "rocm"),
        ("HIP_VISIBLE_DEVICES=0 docker run lmsysorg/sglang:v0.5.14-npu sglang serve --model-path m", "ascend"),
    ],
)
def test_a_variable_or_an_option_tells_the_accelerator_where_no_image_does(line, platform):
    assert facts(line).settings["platform"] == platform


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("python train.py", "no engine in the command line"),
        ("vllm serve m --speculative-config '{method: mtp}'", "not JSON"),
        ("vllm serve m --quant 'x", "can't be split"),
        ("trtllm-serve m", "no engine in the command line"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_the_reason(line, says):
    with pytest.raises(PolicyError, match=says):
        facts(line)


def test_a_stated_fact_outweighs_the_line():
    line = "vllm serve Qwen/Qwen3-8B --spec-method eagle3 --spec-model a/b --spec-tokens 3"
    found = facts(line, engine_version="0.19.1", method="mtp", settings={"page_size": 16})
    assert (found.engine_version, found.method, found.settings["page_size"]) == ("0.19.1", "mtp", 16)
    with pytest.raises(PolicyError, match="unknown facts"):
        facts(line, colour="red")


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.1", "0.19.1"),
        ("registry:5000/mirror/vllm-openai:v0.20.1-cu129", "0.20.1"),
        ("vllm/vllm-openai:v0.20.0rc1-cu129", "0.20.0rc1"),
        ("mirror/vllm-openai:v0.20.0-rc1", "0.20.0rc1"),
        ("mirror/vllm-openai:v0.20.0.rc1-cu129", "0.20.0rc1"),
        ("mirror/vllm-openai:v0.20.0-post1", "0.20.0.post1"),
        ("vllm/vllm-openai:deepseekv4-cu129", None),
        ("vllm/vllm-openai@sha256:ffb2d59b", None),
    ],
)
def test_an_images_tag_tells_the_version_only_if_it_is_one(image, version):
    assert facts(f"docker run --gpus all {image} --model Qwen/Qwen3-8B").engine_version == version


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ("vllm serve Qwen/Qwen3-8B --async-scheduling --no-async-scheduling", "async_scheduling", False),
        ("vllm serve Qwen/Qwen3-8B --no-async-scheduling --async-scheduling", "async_scheduling", True),
        ("vllm serve Qwen/Qwen3-8B --enable-prefix-caching --no-enable-prefix-caching", "prefix_caching", False),
        ("vllm serve Qwen/Qwen3-8B --speculative-model '[ngram]' --num-speculative-tokens 5", "prefix_caching", None),
        ("vllm serve Qwen/Qwen3-8B --speculative-model '[ngram]' --num-speculative-tokens 5", "method", "ngram"),
        ("docker run vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B --spec-method mtp", "runner", "v2"),
        ("docker run vllm/vllm-openai:v0.30.0 Qwen/Qwen3-8B --spec-method mtp", "runner", "v2"),
        ("docker run vllm/vllm-openai:v0.30.0 Qwen/Qwen3-8B --spec-method ngram", "runner", "v1"),
        ("docker run vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B --spec-method ngram", "runner", "v2"),
        ("docker run vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B --spec-method mtp --enable-dbo", "runner", "v1"),
        ("docker run vllm/vllm-openai:v0.25.1 Qwen/Qwen3-8B --spec-method mtp", "runner", None),
        ("docker run vllm/vllm-openai:v0.19.1 Qwen/Qwen3-8B --spec-method mtp", "runner", "v1"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --disable-radix-cache", "prefix_caching", False),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --speculative-algorithm FLASH",
            "method",
            "unknown",
        ),
        ("vllm serve Qwen/Qwen3-8B --spec-method turbo --spec-tokens 3", "method", "unknown"),
    ],
)
def test_the_last_word_counts_and_what_depends_on_the_version_is_known_only_with_it(line, fact, value):
    assert getattr(facts(line), fact) == value


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("vllm serve m --ngram_prompt_lookup_max 4 --speculative_model [ngram]", "prompt_lookup_max", 4),
        ("vllm serve m -cc.cudagraph_mode=PIECEWISE", "cudagraph_mode", "piecewise"),
        ("vllm serve m -dp 8 -ep --all2all-backend deepep_low_latency", "enable_expert_parallel", True),
        (f"vllm serve m --max-model-len 65536 --speculative-config '{SHORTER}'", "drafter_context_shorter", True),
        ("vllm serve m --kv-offloading-size 8", "kv_connector", "OffloadingConnector"),
        ("sglang serve --model m --tp 8 --dp 8 --enable-dp-attention", "enable_dp_attention", True),
        ("sglang serve --model m --disaggregation-mode decode", "kv_connector", "decode"),
        ("sglang serve --model m --page-size 64", "page_size", 64),
    ],
)
def test_settings_that_advisories_name_are_read(line, setting, value):
    assert facts(line).settings[setting] == value


COMPOSE = """
services:
  proxy: {image: nginx}
  engine:
    image: vllm/vllm-openai:v0.20.1
    environment: [VLLM_USE_V2_MODEL_RUNNER=1]
    command: >
      --model Qwen/Qwen3-8B --tool-call-parser hermes
      --speculative-config '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}'
"""
POD = """
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.20.1
      command: [vllm, serve]
      args: [Qwen/Qwen3-8B, --tool-call-parser, hermes, --spec-method, eagle3, --spec-model, a/b, --spec-tokens, "3"]
      env: [{name: VLLM_USE_V2_MODEL_RUNNER, value: "1"}]
"""


@pytest.mark.parametrize("text", [COMPOSE, POD], ids=["compose", "pod"])
def test_a_container_in_a_file_is_read_like_its_command_line(text):
    found = facts(text)
    assert (found.engine_version, found.runner, found.family, found.tool_parser) == ("0.20.1", "v2", "qwen3", "hermes")
    assert (found.method, found.drafter, found.num_speculative_tokens) == ("eagle3", "a/b", 3)


@pytest.mark.parametrize(
    ("line", "platform"),
    [
        ("docker run quay.io/ascend/vllm-ascend:v0.18.0 vllm serve Qwen/Qwen3-8B", "ascend"),
        ("docker run lmsysorg/sglang-rocm:v0.5.14 bash -c 'python3 -m sglang.launch_server --model a/b'", "rocm"),
        ("docker run vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B", "cuda"),
        ("vllm serve Qwen/Qwen3-8B", "cuda"),
    ],
)
def test_an_image_tells_the_accelerator(line, platform):
    assert facts(line).settings["platform"] == platform


def test_a_method_that_the_line_names_is_known_whoever_drafts():
    assert facts("vllm serve m --spec-method eagle3 --spec-model $D --spec-tokens 3").method == "eagle3"


FILE = """
model: Qwen/Qwen3-8B
tensor-parallel-size: 2
tool_call_parser: hermes
enable-prefix-caching: false
api-key: null
speculative-config: {method: eagle3, model: a/b, num_speculative_tokens: 3}
allowed-origins: [a, b]
"""


@pytest.mark.parametrize(
    "line", ["vllm serve {}", "python -m vllm.entrypoints.openai.api_server {}", "sh -c 'vllm serve {}'"]
)
def test_the_options_of_a_file_count_below_those_of_the_line(line):
    words = line.format("--config engine.yaml --tool-call-parser qwen3_coder")
    command = with_file(read_command([words]), FILE)
    found = facts_of_command(command)
    assert (command.model, command.config) == ("Qwen/Qwen3-8B", None)
    assert (found.method, found.drafter, found.num_speculative_tokens) == ("eagle3", "a/b", 3)
    assert (found.tool_parser, found.prefix_caching) == ("qwen3_coder", False)
    assert found.settings["tensor_parallel_size"] == 2


def test_what_the_line_leaves_to_a_variable_stays_unknown_whatever_its_file_says():
    command = with_file(read_command(["vllm serve m --config engine.yaml --tool-call-parser $PARSER"]), FILE)
    assert (command.model, facts_of_command(command).tool_parser) == ("m", None)


def test_an_sglang_has_a_file_of_options_too():
    command = read_command(["sglang serve --model-path Qwen/Qwen3-8B --config server.yaml"])
    found = facts_of_command(with_file(command, "speculative-algorithm: EAGLE3\ntp: 4\ndisable-radix-cache: true\n"))
    assert (found.method, found.settings["tensor_parallel_size"], found.prefix_caching) == ("eagle3", 4, False)


@pytest.mark.parametrize("text", ["- a\n", "", "a: {", "[" * 5000])
def test_a_file_that_holds_no_options_is_refused(text):
    with pytest.raises(PolicyError, match=r"engine\.yaml"):
        with_file(read_command(["vllm serve m --config engine.yaml"]), text)
