"""Options of an engine as vLLM's own parser reads them."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from serve.engine.vllm.host import parse_args


@pytest.mark.parametrize("key", ["k", "-begins_with_a_dash", "--model=x", "has_under_scores-and=signs"])
def test_any_random_key_is_the_engines_key(key: str) -> None:
    assert parse_args({"model": "models/tiny-qwen"}, ("m",), key).api_key == [key]
