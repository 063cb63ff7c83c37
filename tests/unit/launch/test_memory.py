"""The memory estimate: its formulas against vLLM's own figures, and what it says of the configs that ship."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import ConfigError
from serve.launch.memory import GIB, GPU_MEMORY_GIB, ModelShape, estimate, shape_of

ROOT = Path(__file__).parents[3]
KIMI = shape_of("/model_files/Kimi-K2.6")
DRAFTER = shape_of("lightseekorg/kimi-k2.6-eagle3-mla")
QWEN = shape_of("Qwen/Qwen3.6-35B-A3B-FP8")
TP8 = {"tensor-parallel-size": 8, "gpu-memory-utilization": 0.9, "max-num-batched-tokens": 16384, "max-num-seqs": 25}


@pytest.mark.parametrize(
    ("layers", "kv_heads", "ways", "gib", "tokens"),
    [
        (94, 4, 4, 8.11, 178_880),  # Qwen3-235B-A22B, vllm issue 21348
        (40, 8, 1, 6.51, 42_656),  # Qwen3-14B, LMCache issue 1739
    ],
)
def test_a_token_of_grouped_query_attention_takes_what_vllm_s_logs_say(
    layers: int, kv_heads: int, ways: int, gib: float, tokens: int
) -> None:
    """Logs give "Available KV cache memory" to a hundredth of a GiB and "GPU KV cache size" in whole blocks."""
    shape = ModelShape(weights_bytes=0, hidden_size=4096, layers=layers, kv_heads=kv_heads, head_dim=128)
    token = estimate({"tensor-parallel-size": ways}, shape, None, 80 * GIB).token_bytes
    assert gib * GIB / token == pytest.approx(tokens, rel=0.02)


def test_a_token_of_kimi_takes_the_latent_of_every_layer_on_every_gpu() -> None:
    assert KIMI
    assert DRAFTER
    assert estimate(TP8, KIMI, None, 95 * GIB).token_bytes == 61 * 576 * 2
    assert estimate({**TP8, "tensor-parallel-size": 4}, KIMI, None, 95 * GIB).token_bytes == 61 * 576 * 2
    assert estimate({**TP8, "kv-cache-dtype": "fp8"}, KIMI, DRAFTER, 95 * GIB).token_bytes == 62 * 576


def test_kimi_fits_eight_h20_with_128k_and_not_with_256k() -> None:
    assert KIMI
    assert DRAFTER
    spec = {"speculative-config": {"method": "eagle3", "num_speculative_tokens": 3}}
    h20 = GPU_MEMORY_GIB["h20_96gb"] * GIB
    assert estimate({**TP8, **spec, "max-model-len": 131072}, KIMI, DRAFTER, h20).fits
    assert not estimate({**TP8, **spec, "max-model-len": 262144}, KIMI, DRAFTER, h20).fits
    h20_141 = GPU_MEMORY_GIB["h20_141gb"] * GIB
    assert estimate({**TP8, **spec, "max-model-len": 262144}, KIMI, DRAFTER, h20_141).fits


def test_kimi_does_not_fit_four_gpus() -> None:
    assert KIMI
    four = estimate({**TP8, "tensor-parallel-size": 4}, KIMI, None, 95 * GIB)
    assert (four.kv_tokens, four.fits) == (0, False)


def test_states_of_a_hybrid_grow_with_sequences_and_drafted_tokens() -> None:
    assert QWEN
    few, many = ({"tensor-parallel-size": 2, "max-num-seqs": number} for number in (16, 64))
    assert estimate(many, QWEN, None, 95 * GIB).states == 4 * estimate(few, QWEN, None, 95 * GIB).states
    mtp = {**few, "speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}
    assert estimate(mtp, QWEN, None, 95 * GIB).states == 4 * estimate(few, QWEN, None, 95 * GIB).states


@given(st.sampled_from([1, 2, 4, 8]), st.floats(0.5, 0.95), st.integers(1, 200))
def test_more_memory_never_holds_fewer_tokens(ways: int, share: float, gib: int) -> None:
    assert KIMI
    args = {"tensor-parallel-size": ways, "gpu-memory-utilization": share}
    assert estimate(args, KIMI, None, gib * GIB).kv_tokens <= estimate(args, KIMI, None, (gib + 1) * GIB).kv_tokens


def test_a_folder_that_is_here_is_read() -> None:
    shape = shape_of(str(ROOT / "models" / "tiny-qwen"))
    assert shape
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (4, 2, 64)
    assert shape.weights_bytes == (ROOT / "models" / "tiny-qwen" / "model.safetensors").stat().st_size


def test_a_hybrid_s_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "config.json").write_text(
        '{"text_config": {"hidden_size": 2048, "num_hidden_layers": 40, "full_attention_interval": 4,'
        '"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,'
        '"linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}}'
    )
    shape = shape_of(str(tmp_path))
    assert shape
    assert QWEN
    assert (shape.layers, shape.kv_heads, shape.recurrent) == (QWEN.layers, QWEN.kv_heads, QWEN.recurrent)


def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read as a model"):
        shape_of(str(tmp_path))


def test_an_unknown_model_is_unknown() -> None:
    assert shape_of("org/never-heard-of") is None
