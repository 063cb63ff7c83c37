"""Mends sampling of drafted requests on vLLM's CPU build.

vLLM 0.32's CPU stand-in for the kernel that spreads a request's temperature, top-k and top-p over its drafted tokens
(`_expand_kernel_impl`) converts its output tensor to int64 first, so it writes into a copy and the drafted tokens are
sampled with whatever lay in memory. Greedy requests alone are right, since they need none of the three. GPU builds
run the Triton kernel and are not affected.
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
        cumulative_counts: Shape [requests]; how many tokens all requests up to and including this one have.
        replace_from: A value to be replaced...
        replace_to: ...and by what.
        MAX_NUM_TOKENS: The kernel's block size; of no use here.
    """
    counts = torch.diff(cumulative_counts, prepend=cumulative_counts.new_zeros(1))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts))


def register() -> None:
    """Put our version in the place of the broken one, before vLLM's worker looks it up; does nothing elsewhere."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = expand_to_tokens
