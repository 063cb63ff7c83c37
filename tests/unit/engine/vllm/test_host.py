"""Options of an engine as vLLM's own parser reads them, what is refused, and what an engine answers that has died."""

import inspect
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    from serve.engine.vllm.host import facts_of, keep_serving, parse_args, refuse_stale_drafts

from policies.facts import checked
from serve.errors import ConfigError

SPECULATING = {
    "model": "models/tiny-qwen",
    "max-model-len": 256,
    "speculative-config": {"method": "draft_model", "model": "models/tiny-qwen-draft", "num_speculative_tokens": 2},
}


def configured(engine_args: dict[str, Any]) -> Any:
    """Returns vLLM's whole configuration of an engine."""
    return AsyncEngineArgs.from_cli_args(parse_args(engine_args, ("m",), "key")).create_engine_config()


@pytest.mark.parametrize("key", ["k", "-begins_with_a_dash", "--model=x", "has_under_scores-and=signs"])
def test_any_random_key_is_the_engines_key(key: str) -> None:
    assert parse_args({"model": "models/tiny-qwen"}, ("m",), key).api_key == [key]


def test_a_request_to_an_engine_that_has_died_is_told_so() -> None:
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.state.engine_client = SimpleNamespace(errored=True, is_running=False, should_keep_api_server_alive=False)
    keep_serving(app)
    init_exception_handler(app)

    @app.get("/")
    async def dead() -> None:
        raise EngineDeadError

    answer = TestClient(app).get("/")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("function", "positional", "named"),
    [
        (AsyncEngineArgs.create_engine_config, 1, ["usage_context"]),
        (AsyncLLM.from_vllm_config, 0, ["vllm_config", "usage_context", "disable_log_stats", "enable_log_requests"]),
        (AsyncLLM.get_supported_tasks, 1, []),
        (AsyncLLM.check_health, 1, []),
        (AsyncLLM.is_sleeping, 1, []),
        (AsyncLLM.shutdown, 1, ["timeout"]),
        (AsyncLLM.get_tokenizer, 1, []),
        (build_app, 3, []),
        (init_app_state, 4, []),
    ],
)
def test_vllm_takes_what_the_host_gives_it(function: Callable[..., Any], positional: int, named: list[str]) -> None:
    inspect.signature(function).bind(*range(positional), **dict.fromkeys(named))


def test_the_facts_of_an_engine_are_facts_that_the_policy_knows() -> None:
    facts = facts_of(configured(SPECULATING))
    assert (facts["engine"], facts["method"], facts["num_speculative_tokens"]) == ("vllm", "draft_model", 2)
    assert facts["drafter"].endswith("models/tiny-qwen-draft")
    del facts["max_model_len"]
    assert checked("here", facts) == facts


@pytest.fixture(scope="module", params=[True, False], ids=["speculating", "standard"])
def either(request: pytest.FixtureRequest) -> Any:
    """Returns an engine's configuration with and without a drafter."""
    return configured(SPECULATING if request.param else {"model": "models/tiny-qwen", "max-model-len": 256})


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_in_pipeline_stages_need_the_scheduler_that_waits(
    monkeypatch: pytest.MonkeyPatch, either: Any, runner: str, stages: int, asynchronous: bool
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(runner == "v2")))
    either.parallel_config.pipeline_parallel_size = stages  # on the CPU, vLLM settles these two by itself
    either.scheduler_config.async_scheduling = asynchronous
    if either.speculative_config and runner == "v2" and stages > 1 and not asynchronous:
        with pytest.raises(
            ConfigError, match=r"pipeline-parallel-size 2 .* \(vllm#52071\): remove no-async-scheduling"
        ):
            refuse_stale_drafts(either)
    else:
        refuse_stale_drafts(either)
