"""Fixes sampling of drafted tokens on vLLM's CPU build.

The kernel that copies a request's temperature, top-k and top-p to each of its drafted tokens has a CPU replacement in
vLLM 0.32 (`_expand_kernel_impl`) that converts the output tensor to int64 first. It thus writes to a copy, and drafted
tokens are sampled with uninitialized values. Only greedy requests are right, because they need none of the three. GPU
builds run the Triton kernel and are not affected.
"""

import torch


def expand_to_tokens(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative_counts: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Write each request's value once for each of its tokens.

    Args:
        output: Shape [tokens], written in place.
        values: Shape [requests].
        cumulative_counts: Shape [requests]; number of tokens of all requests up to and including this one.
        replace_from: Value to be replaced.
        replace_to: Value to replace it with.
        MAX_NUM_TOKENS: The kernel's block size; unused.
    """
    counts = torch.diff(cumulative_counts, prepend=cumulative_counts.new_zeros(1))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts))


def register() -> None:
    """Replace the broken kernel before vLLM's worker looks it up; does nothing on other platforms."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = expand_to_tokens
