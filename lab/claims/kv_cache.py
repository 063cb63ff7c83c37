"""vLLM's KV-cache manager alone, on a hybrid with a drafter: which recurrent state does a second request get?

No model and no GPU: the manager says which blocks a request computes into and which ones it may reuse. The harness
notes after how many tokens each state was written, and compares that with the tokens that the next request skips.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

from lab.claims.signature import accepted

BLOCK = 16  # tokens
_ATTENTION, _STATE = 0, 1  # groups
_LOOKAHEAD = "num_hash_lookahead_tokens"


@dataclass(frozen=True)
class Mode:
    """An engine's treatment of the last block that a request may reuse.

    Attributes:
        drafter: EAGLE or MTP is on.
        lookahead: Hashes cover the token after their block, so that nothing has to be dropped (vLLM 0.33).
    """

    drafter: bool
    lookahead: bool = False


class Reuse(NamedTuple):
    """The part of an earlier request that a request reuses.

    Attributes:
        shared: Tokens that both have in common.
        tokens: Tokens that it does not compute again.
        state: Tokens that the recurrent state stands for; None if it gets a block that nobody wrote.
    """

    shared: int
    tokens: int
    state: int | None

    @property
    def sound(self) -> bool:
        """True if the recurrent state stands exactly where attention goes on."""
        return not self.tokens or self.state == self.tokens


def modes() -> list[Mode]:
    """Returns the modes that this vLLM has."""
    lookahead = _LOOKAHEAD in inspect.signature(KVCacheManager.__init__).parameters
    return [Mode(False), Mode(True), *([Mode(True, lookahead=True)] if lookahead else [])]


def reuses(mode: Mode) -> Iterator[Reuse]:
    """Yields what a second request reuses, over lengths of the first and of what they share.

    The first one is computed whole or a block at a time, and then writes some tokens.
    """
    for length in (BLOCK, 2 * BLOCK + 3, 3 * BLOCK, 4 * BLOCK + 1, 7 * BLOCK - 1):
        for shared in range(BLOCK // 2, length + 1, BLOCK // 2):
            for chunk in (BLOCK, 8 * BLOCK):
                yield _reuse(mode, length, shared, chunk)


def _reuse(mode: Mode, length: int, shared: int, chunk: int) -> Reuse:
    manager = _manager(mode)
    written: dict[int, int] = {}  # a block of the state group -> the tokens that its state stands for
    first = _request("first", list(range(length)), mode)
    manager.get_computed_blocks(first)
    done = 0
    while done < length:
        # A chunk ends on a block's boundary, as the scheduler cuts it, or with the prompt.
        left = min(chunk, length - done)
        step = left if left < BLOCK else left - left % BLOCK
        _compute(manager, first, step, written)
        done += step
    manager.new_step_starts()  # what a step has written can be reused in the next one
    second = _request("second", [*range(shared), *range(10_000, 10_000 + 2 * BLOCK)], mode)
    blocks, tokens = manager.get_computed_blocks(second)[:2]
    groups = blocks.blocks
    state = groups[_STATE][-1] if groups[_STATE] else None
    stands = written.get(state.block_id) if state is not None and not state.is_null else None
    return Reuse(shared, tokens, stands)


def _compute(manager: Any, request: Any, tokens: int, written: dict[int, int]) -> None:
    manager.new_step_starts()
    assert manager.allocate_slots(request, tokens, num_lookahead_tokens=0) is not None
    request.num_computed_tokens += tokens
    place = (request.num_computed_tokens - 1) // BLOCK
    written[manager.get_blocks(request.request_id).blocks[_STATE][place].block_id] = request.num_computed_tokens


def _manager(mode: Mode) -> Any:
    spec = {"block_size": BLOCK}
    attention = FullAttentionSpec(**spec, num_kv_heads=1, head_size=1, dtype=torch.float32)
    state = MambaSpec(**spec, shapes=((1, 1),), dtypes=(torch.float32,), mamba_cache_mode="align")
    groups = [
        KVCacheGroupSpec(
            ["attention", "drafter"],
            attention,
            **accepted(KVCacheGroupSpec.__init__, {"is_eagle_group": mode.drafter}),
        ),
        KVCacheGroupSpec(["state"], state),
    ]
    config = KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=groups)
    wanted = {
        "kv_cache_config": config,
        "max_model_len": 8192,
        "scheduler_block_size": BLOCK,
        "hash_block_size": BLOCK,
        "enable_caching": True,
        "use_eagle": mode.drafter and not mode.lookahead,
        _LOOKAHEAD: int(mode.lookahead),
        "num_prefill_lookahead": int(mode.drafter),
    }
    init_none_hash(sha256)  # random in older versions, so once for both requests
    return KVCacheManager(**accepted(KVCacheManager.__init__, wanted))


def _request(name: str, tokens: list[int], mode: Mode) -> Any:
    wanted = {"hash_block_size": BLOCK, "caching_hash_fn": sha256, _LOOKAHEAD: int(mode.lookahead)}
    parameters = SamplingParams(max_tokens=4)
    given = {
        "request_id": name,
        "prompt_token_ids": tokens,
        "sampling_params": parameters,
        "pooling_params": None,
        "block_hasher": get_request_block_hasher(**accepted(get_request_block_hasher, wanted)),
    }
    return Request(**accepted(Request.__init__, given))
