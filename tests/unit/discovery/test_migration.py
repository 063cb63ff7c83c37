"""Files that people have name their engines: what they say is used as far as the engine does not deny it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policies.command_facts import stated_by
from serve.discovery.configuration import models_of
from serve.discovery.described import DescribedEngine, explained, with_names
from serve.discovery.manifests import read_description
from serve.discovery.reading import Finding, FoundEngine, facts_of
from serve.errors import ConfigError

COMPOSE = """
x-gpu: &gpu {deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1}]}}}}
services:
  db: {image: "postgres:16", command: [postgres]}
  kimi:
    <<: *gpu
    image: vllm/vllm-openai:v0.32.0
    ports: ["${PORT:-8001}:8000"]
    command: >
      --model moonshotai/Kimi-K2.6 --served-model-name kimi --tool-call-parser kimi_k2 --enable-auto-tool-choice
      --speculative-config '{"method": "eagle3", "model": "a/drafter", "num_speculative_tokens": 3}'
  plain:
    image: vllm/vllm-openai:latest
    command: ["--model", "Qwen/Qwen3-8B", "--port", "9000"]
  router:
    image: lmcache/lmstack-router:latest
    command: --service-discovery static --static-backends http://kimi:8000 --static-models kimi --routing-logic session
"""
MANIFESTS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: qwen}
spec:
  template:
    metadata: {labels: {app: qwen, tier: gpu}}
    spec:
      containers:
        - {name: proxy, image: envoy}
        - name: engine
          image: vllm/vllm-openai:v0.19.1
          env: [{name: WEIGHTS, value: Qwen/Qwen3-Coder-30B-A3B}]
          command: [sh, -c]
          args: ["vllm serve $(WEIGHTS) --tool-call-parser qwen3_coder --kv-cache-dtype $DTYPE"]
          ports: [{name: api, containerPort: 8000}]
---
apiVersion: v1
kind: Service
metadata: {name: qwen-svc, namespace: models}
spec: {selector: {app: qwen}, ports: [{port: 80, targetPort: api}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: lone}
spec:
  template:
    metadata: {labels: {app: lone}}
    spec:
      containers:
        - {image: "lmsysorg/sglang:v0.5.23", command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B]}
"""
LITELLM = """
model_list:
  - model_name: claude-*
    litellm_params: {model: hosted_vllm/kimi, api_base: "http://gpu-1:8000/v1", api_key: none, timeout: 30}
  - model_name: kimi
    litellm_params: {model: openai/kimi, api_base: os.environ/SECOND, api_key: os.environ/ENGINE_KEY}
  - model_name: gpt-4o
    litellm_params: {model: azure/gpt-4o, api_key: os.environ/AZURE}
  - model_name: away
    litellm_params: {model: hosted_vllm/x, api_base: os.environ/NOT_SET}
  - model_name: secret
    litellm_params: {model: hosted_vllm/kimi, api_base: "http://gpu-3:8000", api_key: sk-real-key}
router_settings: {routing_strategy: least-busy, model_group_alias: {kimi-latest: kimi, "bad name!": kimi}}
litellm_settings: {fallbacks: [{kimi: [gpt-4o]}]}
"""
ROUTER = """
service_discovery: static
routing_logic: session
static_models:
  facebook/opt-125m: {static_backends: ["http://localhost:9001", "http://localhost:9003"]}
  kimi: {static_backends: ["http://localhost:9002"]}
static_aliases: {my-alias: kimi}
"""
STACK = """
servingEngineSpec:
  modelSpec:
    - name: llama3
      repository: vllm/vllm-openai
      tag: v0.10.1
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      enableTool: true
      toolCallParser: llama3_json
      vllmConfig: {tensorParallelSize: 2, maxModelLen: 4096, extraArgs: ["--speculative-config", '{"method": "ngram"}']}
    - {name: off, enabled: false, modelURL: x}
"""
SCRIPT = """#!/bin/bash
export CUDA_VISIBLE_DEVICES=0
# vllm serve old/model
helm install vllm vllm/vllm-stack -f values.yaml
vllm serve open/model --port $PORT
vllm serve Qwen/Qwen3-8B \\
  --port 8100 --tool-call-parser hermes &
docker run --gpus all -p 8101:8000 vllm/vllm-openai:v0.32.0 --model Qwen/Qwen3-8B --spec-method ngram --spec-tokens 3
python -m sglang_router.launch_router --worker-urls http://h1:30000 http://h2:30000 --policy cache_aware
"""
SETUPS = yaml.safe_load((Path(__file__).parent / "setups.yaml").read_text(encoding="utf-8"))
ENV = {"SECOND": "http://gpu-2:8000"}


def engines(text: str, env: Mapping[str, str] = ENV) -> dict[str | None, DescribedEngine]:
    return {each.url: each for each in read_description(text, "file", env).engines}


def left(text: str) -> str:
    return "\n".join(read_description(text, "file", ENV).left)


def test_a_compose_file_tells_published_ports_and_command_lines() -> None:
    found = engines(COMPOSE)
    assert list(found) == ["http://127.0.0.1:8001", "http://plain:9000", "http://kimi:8000"]
    assert "http://127.0.0.1:7000" in engines(COMPOSE, {"PORT": "7000"})
    command = found["http://127.0.0.1:8001"].command
    assert command is not None
    assert (command.model, command.version) == ("moonshotai/Kimi-K2.6", "0.32.0")
    assert "routing" in left(COMPOSE)


def test_manifests_tell_the_service_in_front_of_an_engine() -> None:
    found = engines(MANIFESTS)
    assert list(found) == ["http://qwen-svc.models:80", None]
    command = found["http://qwen-svc.models:80"].command
    assert command is not None
    assert (command.model, command.unknown) == ("Qwen/Qwen3-Coder-30B-A3B", {"kv_cache_dtype"})
    assert "StatefulSet lone: no Service selects its pods" in left(MANIFESTS)


def test_a_headless_service_has_an_engine_at_each_address() -> None:
    text = MANIFESTS.replace("spec: {selector: {app: qwen}", 'spec: {clusterIP: "None", selector: {app: qwen}')
    (engine, _) = engines(text).values()
    assert (engine.url, engine.resolve) == ("http://qwen-svc.models:8000", True)


def test_litellm_tells_urls_and_names_and_never_a_key() -> None:
    found = engines(LITELLM)
    assert list(found) == ["http://gpu-1:8000/v1", "http://gpu-2:8000", "http://gpu-3:8000"]
    assert found["http://gpu-1:8000/v1"].names == ("claude-*",)
    assert found["http://gpu-2:8000"].names == ("kimi", "kimi-latest")
    assert found["http://gpu-2:8000"].key_env == "ENGINE_KEY"
    told = left(LITELLM)
    assert "sk-real-key" not in told
    for part in ("gpt-4o: azure", "away: no api_base", "timeout", "router_settings", "litellm_settings", "secret: its"):
        assert part in told


def test_a_router_s_configuration_and_command_line_tell_urls_and_names() -> None:
    found = engines(ROUTER)
    assert list(found) == ["http://localhost:9001", "http://localhost:9003", "http://localhost:9002"]
    assert found["http://localhost:9002"].names == ("kimi", "my-alias")
    assert "routing_logic" in left(ROUTER)
    line = "vllm-router --service-discovery k8s --k8s-label-selector release=test --k8s-namespace default"
    assert "endpoints" in left(line)


def test_values_of_the_production_stack_are_what_its_chart_makes_of_them() -> None:
    ((url, engine),) = engines(STACK).items()
    assert url == "http://vllm-llama3-engine-service:80"
    assert engine.command is not None
    assert engine.command.args == {
        "tool_call_parser": "llama3_json", "no_enable_prefix_caching": True, "max_model_len": 4096,
        "tensor_parallel_size": 2, "speculative_config": '{"method": "ngram"}',
    }  # fmt: skip


def test_a_script_tells_each_engine_that_it_starts() -> None:
    assert list(engines(SCRIPT)) == [
        None, "http://127.0.0.1:8100", "http://127.0.0.1:8101", "http://h1:30000", "http://h2:30000"
    ]  # fmt: skip


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup["kind"])
def test_every_engine_of_a_public_set_up_is_found_and_its_facts_are_right_or_unknown(setup: dict[str, Any]) -> None:
    found = read_description(setup["text"], "file", {}).engines
    assert [each.url for each in found] == [engine["at"] for engine in setup["engines"]]
    for each, engine in zip(found, setup["engines"], strict=True):
        facts = stated_by(each.command) if each.command is not None else {}
        settings = engine["facts"].pop("settings", {})
        assert {name: facts.get(name) for name in engine["facts"]} == engine["facts"]
        assert settings.items() <= facts.get("settings", {}).items()


def test_a_key_in_a_command_line_is_no_fact_and_is_said_to_stay_there() -> None:
    text = "vllm serve a/b --api-key sk-secret --hf-token hf_secret"
    (engine,) = engines(text).values()
    assert engine.command is not None
    assert "secret" not in str(stated_by(engine.command))
    assert "its --api-key, written out there" in left(text)
    assert "secret" not in left(text)


def test_a_command_of_a_script_goes_on_to_the_end_of_its_last_quotation() -> None:
    text = """\
echo It's a test of two engines
DRAFTER=org/drafter
vllm serve a/b \\
  --port 8100 \\
  --speculative-config '{
    "method": "eagle3",
    "model": "'"$DRAFTER"'",
    "num_speculative_tokens": 3
  }' \\
  > "$LOG" 2>&1 &
docker run -p 8101:8000 vllm/vllm-openai:v0.32.0 bash -c "
  vllm serve c/d" &
# The other one's log is not kept.
vllm serve e/f --port 8102 --chat-template 'never closed
vllm serve g/h --port 8103
"""
    found = engines(text)
    assert [*found] == [f"http://127.0.0.1:{port}" for port in (8100, 8101, 8103)]
    assert [each.command.model for each in found.values() if each.command] == ["a/b", "c/d", "g/h"]
    facts = stated_by(next(each.command for each in found.values() if each.command))
    assert (facts["method"], facts["drafter"], facts["num_speculative_tokens"]) == ("eagle3", "org/drafter", 3)


ARRAYS = """\
MODEL="${MODEL:-a/b}"
declare -a COMMON=(--tensor-parallel-size 2 --tool-call-parser hermes)
args=(
  serve "$MODEL" --port 8100  # where nginx expects it
  --speculative-config "{\\"method\\":\\"mtp\\",\\"num_speculative_tokens\\":2}"
  # --enforce-eager
  "${COMMON[@]}"
)
echo "vllm ${args[*]}"
[ -n "$EXTRA" ] && more+=($EXTRA)
exec vllm "${args[@]}" > "$LOG" 2>&1
"""


def test_the_words_of_a_scripts_arrays_belong_to_the_command() -> None:
    (engine,) = engines(ARRAYS).values()
    assert engine.url == "http://127.0.0.1:8100"
    assert engine.command is not None
    assert engine.command.model == "a/b"
    facts = stated_by(engine.command)
    assert (facts["method"], facts["num_speculative_tokens"], facts["tool_parser"]) == ("mtp", 2, "hermes")


def test_options_that_a_script_adds_to_an_array_are_not_known() -> None:
    (engine,) = engines(ARRAYS.replace("more+=", "args+=").replace("--speculative-config", "--x-config")).values()
    assert engine.command is not None
    assert stated_by(engine.command)["method"] == "unknown"


def test_a_variable_that_a_script_sets_twice_is_not_known() -> None:
    text = "if big; then\n  PORT=1\nelse\n  PORT=2\nfi\nvllm serve a/b --port $PORT\n"
    assert list(engines(text)) == [None]
    assert list(engines(text.replace("PORT=2", "PORT=1"))) == ["http://127.0.0.1:1"]


DEEP = pytest.param("image: " + "[" * 5000, id="deep")


@pytest.mark.parametrize("text", ["", "hello", "services: {web: {image: nginx}}", "kind: Service", "- 1", "{", DEEP])
def test_a_file_without_engines_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="holds no engine"):
        read_description(text, "file", {})


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(["vllm serve m", "http://a:1"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["services", "image", "command", "args", "ports", "model_list", "litellm_params", "api_base", "model",
             "kind", "spec", "template", "metadata", "labels", "containers", "static_models", "static_backends",
             "routerSpec", "servingEngineSpec", "modelSpec", "vllmConfig", "items", "env", "environment", "selector",
             "extraArgs"]
        ),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(_VALUES)
def test_whatever_yaml_holds_it_is_read_or_refused(value: Any) -> None:
    with suppress(ConfigError):
        read_description(yaml.safe_dump(value), "file", {})


def told(**facts: Any) -> dict[str, Finding]:
    values = {"served_names": ("kimi",), "root": "moonshotai/Kimi-K2.6", "engine": "vllm", "engine_version": "0.32.0"}
    return {name: Finding(value, "asked", "certain") for name, value in {**values, **facts}.items()}


def with_compose(url: str = "http://127.0.0.1:8001", **facts: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    engine, against = explained(FoundEngine(url, None, told(**facts)), list(engines(COMPOSE).values()))
    return facts_of(engine.findings), against


def test_a_command_line_tells_the_method_that_an_engine_does_not() -> None:
    facts, against = with_compose(speculates=True)
    assert (facts["method"], facts["drafter"], facts["tool_parser"]) == ("eagle3", "a/drafter", "kimi_k2")
    assert against == ()


@pytest.mark.parametrize(
    "facts",
    [{"speculates": False}, {"engine_version": "0.33.0"}, {"served_names": ("other",)}, {"method": "mtp"}],
    ids=lambda facts: next(iter(facts)),
)
def test_nothing_counts_of_a_command_line_that_the_engine_denies(facts: dict[str, Any]) -> None:
    found, against = with_compose(**{"speculates": True, **facts})
    assert "tool_parser" not in found
    assert "is not what runs at http://127.0.0.1:8001" in against[0]


def test_a_command_line_that_cannot_be_read_tells_nothing_and_says_why() -> None:
    (described,) = engines("vllm serve a/kimi --port 1 --speculative-config '{\"model\": <yours>}'").values()
    engine = FoundEngine("http://127.0.0.1:1", None, told())
    found, notes = explained(engine, [described])
    assert found == engine
    assert "file: engine_args: speculative-config is not JSON" in notes[0]


def test_a_parser_that_an_engine_seems_not_to_have_is_denied() -> None:
    engine = FoundEngine(
        "http://127.0.0.1:8001", None, {**told(), "tool_parser": Finding("hermes", "forced", "likely")}
    )
    assert explained(engine, list(engines(COMPOSE).values()))[1]


def test_an_engine_in_doubt_about_its_drafts_is_not_explained_away() -> None:
    doubt = {**told(), "speculates": Finding(None, "its answers differ", "unknown")}
    engine, _ = explained(FoundEngine("http://127.0.0.1:8001", None, doubt), list(engines(COMPOSE).values()))
    assert facts_of(engine.findings)["method"] == "unknown"


def test_a_command_line_without_a_url_is_of_the_engine_that_it_fits() -> None:
    lines = [DescribedEngine("f", command=each.command) for each in engines(COMPOSE).values() if each.command]
    engine, _ = explained(FoundEngine("http://elsewhere", None, told(speculates=True)), lines)
    assert facts_of(engine.findings)["method"] == "eagle3"
    other, against = explained(FoundEngine("http://elsewhere", None, told(served_names=("x",), root="x")), lines)
    assert (facts_of(other.findings)["method"], against) == ("unknown", ())


def test_names_become_aliases_and_one_name_is_one_model() -> None:
    found = [
        FoundEngine("http://gpu-1:8000", None, told()),
        FoundEngine("http://b", None, told(served_names=("x",), root="x")),
    ]
    files = [
        DescribedEngine("f", "http://gpu-1:8000", names=("claude-*", "kimi", "x")),
        DescribedEngine("f", "http://b", names=("claude-*",)),
    ]
    models, problems = with_names(models_of(found), files)
    assert models["kimi"]["aliases"] == ["claude-*"]
    assert "aliases" not in models["x"]
    assert len(problems) == 2


def test_the_shipped_compose_file_tells_its_engines() -> None:
    path = Path(__file__).parents[3] / "deploy" / "compose" / "compose.yaml"
    commands = [each.command for each in engines(path.read_text(), {}).values()]
    assert commands
    assert None not in commands
