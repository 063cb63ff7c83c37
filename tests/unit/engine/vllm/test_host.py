"""Options of an engine as vLLM's own parser reads them, and what an engine answers that has died."""

import warnings
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.v1.engine.exceptions import EngineDeadError

    from serve.engine.vllm.host import keep_serving, parse_args


@pytest.mark.parametrize("key", ["k", "-begins_with_a_dash", "--model=x", "has_under_scores-and=signs"])
def test_any_random_key_is_the_engines_key(key: str) -> None:
    assert parse_args({"model": "models/tiny-qwen"}, ("m",), key).api_key == [key]


def test_a_request_to_an_engine_that_has_died_is_told_so() -> None:
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.state.engine_client = SimpleNamespace(errored=True, is_running=False)
    keep_serving(app)
    init_exception_handler(app)

    @app.get("/")
    async def dead() -> None:
        raise EngineDeadError

    answer = TestClient(app).get("/")
    assert answer.status_code == 500
    assert "EngineCore" in answer.json()["error"]["message"]
