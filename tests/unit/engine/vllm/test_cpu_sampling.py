"""Temperature, top-k and top-p of a drafted request reach every one of its tokens on vLLM's CPU build."""

import importlib.util
import inspect
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    from serve.engine.vllm import plugin as vllm_plugin
    from serve.engine.vllm.cpu_sampling import expand_to_tokens

    vllm_plugin.register()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_value_is_spread_over_the_requests_tokens(dtype: torch.dtype) -> None:
    if not current_platform.is_cpu():
        pytest.skip("GPU builds run vLLM's own kernel")
    output = torch.full((6,), -9, dtype=dtype)
    values, cumulative = torch.tensor([5, 0, 7], dtype=dtype), torch.tensor([2, 3, 6], dtype=torch.int32)
    cpu_triton_utils._expand_kernel_impl(output, values, cumulative, 0, 1)
    assert output.tolist() == [5, 5, 1, 7, 7, 7]


def test_what_replaces_vllms_kernel_is_called_as_it_is() -> None:
    spec = importlib.util.find_spec(cpu_triton_utils.__name__)
    assert spec is not None
    assert spec.loader is not None
    untouched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(untouched)
    theirs, ours = (
        list(inspect.signature(each).parameters) for each in (untouched._expand_kernel_impl, expand_to_tokens)
    )
    assert len(ours) == len(theirs)
    assert ours[3:] == theirs[3:], "the tensors come by position, the rest may come by name"
