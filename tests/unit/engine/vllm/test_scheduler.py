"""The opt-out on vLLM's own schedulers, without a model: what they put into the batches that a worker would get."""

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.diffusion_scheduler import DiffusionAsyncScheduler, DiffusionScheduler
    from vllm.v1.core.sched.interface import SchedulerInterface
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    from serve.engine.vllm.scheduler import OptOut, OptOutAsyncScheduler, OptOutScheduler, install

from serve.errors import ConfigError

DRAFTS = 3
BLOCK = 16
PROMPT = list(range(10, 10 + 2 * BLOCK + 1))  # one token more than whole blocks: all but one are found in the cache
WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def engine_config(*, asynchronous: bool = False, **settings: Any) -> Any:
    """Returns a whole configuration of vLLM's for a speculating engine."""
    drafter = {"method": "draft_model", "model": "models/tiny-qwen-draft", "num_speculative_tokens": DRAFTS}
    config = EngineArgs(
        model="models/tiny-qwen", dtype="float32", max_model_len=256, block_size=BLOCK, enable_prefix_caching=True,
        speculative_config=drafter, **settings,
    ).create_engine_config()  # fmt: skip
    config.scheduler_config.async_scheduling = asynchronous  # on the CPU vLLM forbids it, for its worker's sake
    return config


class Engine:
    """What stands around a scheduler: a worker that samples one token a request and rejects every draft."""

    def __init__(self, *, asynchronous: bool) -> None:
        config = engine_config(asynchronous=asynchronous)
        install(config)
        config.cache_config.num_gpu_blocks = 100
        init_none_hash(sha256)
        layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.asynchronous = asynchronous
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(100, [], [KVCacheGroupSpec(["layer"], layer)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )

    def add(self, name: str, *, opted_out: bool) -> None:
        parameters = SamplingParams(
            max_tokens=60, temperature=0.0, extra_args={"enable_speculative": 0} if opted_out else None
        )
        hashes = get_request_block_hasher(BLOCK, sha256)
        self.scheduler.add_request(Request(name, PROMPT, parameters, None, block_hasher=hashes))

    def step(self) -> SchedulerOutput:
        batch = self.scheduler.schedule()
        names = list(batch.num_scheduled_tokens)
        rows = {name: place for place, name in enumerate(names)}
        self.scheduler.update_from_output(batch, ModelRunnerOutput(names, rows, [[5] for _ in names]))
        if not self.asynchronous:
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, [[7] * DRAFTS for _ in names]))
        return batch


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    running = Engine(asynchronous=request.param)
    yield running
    running.scheduler.shutdown()


def drafted(batch: SchedulerOutput) -> dict[str, int]:
    """Returns the number of drafts in each row of a batch."""
    return {name: len(batch.scheduled_spec_decode_tokens.get(name, ())) for name in batch.num_scheduled_tokens}


def test_an_opted_out_request_has_no_draft_in_any_step_and_its_neighbour_has_all(engine: Engine) -> None:
    engine.add("speculating", opted_out=False)
    engine.add("out", opted_out=True)
    engine.step()
    for _ in range(5):
        batch = engine.step()
        assert drafted(batch) == {"speculating": DRAFTS, "out": 0}
        assert batch.num_scheduled_tokens == {"speculating": 1 + DRAFTS, "out": 1}


def test_a_request_whose_prompt_is_cached_is_not_padded_with_drafts_if_it_opted_out(engine: Engine) -> None:
    engine.add("first", opted_out=False)
    engine.step()
    engine.step()
    engine.add("speculating", opted_out=False)
    engine.add("out", opted_out=True)
    batch = engine.step()
    assert drafted(batch) == {"first": DRAFTS, "speculating": DRAFTS, "out": 0}, "vLLM pads, or the case tests nothing"
    assert batch.num_scheduled_tokens["out"] == 1
    assert batch.total_num_scheduled_tokens == sum(batch.num_scheduled_tokens.values())
    assert drafted(engine.step()) == {"first": DRAFTS, "speculating": DRAFTS, "out": 0}


def test_a_resumed_request_is_where_it_was_without_drafts(engine: Engine) -> None:
    engine.add("out", opted_out=True)
    engine.add("speculating", opted_out=False)
    for _ in range(3):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    for _ in range(4):
        assert drafted(engine.step())["out"] == 0
    assert drafted(engine.step()) == {"out": 0, "speculating": DRAFTS}
    length = {name: engine.scheduler.requests[name].num_tokens for name in ("out", "speculating")}
    assert length["out"] == length["speculating"] == len(PROMPT) + 8


def test_a_worker_that_has_drafts_of_its_own_gets_none_of_them_into_an_opted_out_row(engine: Engine) -> None:
    engine.add("first", opted_out=False)
    engine.step()
    engine.step()
    engine.add("out", opted_out=True)
    batch = engine.scheduler.schedule()
    names = list(batch.num_scheduled_tokens)
    engine.scheduler.update_draft_token_ids_in_output(DraftTokenIds(names, [[7] * DRAFTS for _ in names]), batch)
    assert batch.scheduled_spec_decode_tokens == {"first": [7] * DRAFTS}


@WAYS
def test_the_scheduler_goes_with_the_way_that_vllm_chose(asynchronous: bool) -> None:
    config = engine_config(asynchronous=asynchronous)
    install(config)
    install(config)  # again does no harm
    ours = config.scheduler_config.get_scheduler_cls()
    assert ours is (OptOutAsyncScheduler if asynchronous else OptOutScheduler)
    assert issubclass(ours, AsyncScheduler) == asynchronous


class Own(Scheduler):  # type: ignore[misc]
    """An operator's."""


class OwnWithOptOut(OptOut, Own):
    """An operator's, with the opt-out."""


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (Own, f"{__name__}.Own"),
        ("vllm.v1.core.sched.scheduler.Scheduler", "vllm.v1.core.sched.scheduler.Scheduler"),
        (DiffusionScheduler, "vllm.v1.core.sched.diffusion_scheduler.DiffusionScheduler"),
        (DiffusionAsyncScheduler, "vllm.v1.core.sched.diffusion_scheduler.DiffusionAsyncScheduler"),
    ],
)
def test_another_scheduler_is_never_replaced_in_silence(theirs: Any, name: str) -> None:
    config = engine_config(scheduler_cls=theirs)
    with pytest.raises(ConfigError, match=rf"has {name}: derive .* or remove"):
        install(config)
    assert config.scheduler_config.scheduler_cls == theirs


def test_an_operators_scheduler_with_the_opt_out_stays() -> None:
    config = engine_config(scheduler_cls=OwnWithOptOut)
    install(config)
    assert config.scheduler_config.scheduler_cls is OwnWithOptOut


@pytest.mark.parametrize("theirs", [Scheduler, AsyncScheduler, SchedulerInterface])
@pytest.mark.parametrize("method", ["update_draft_token_ids", "_update_after_schedule"])
def test_what_the_opt_out_overrides_is_called_as_it_was(theirs: type, method: str) -> None:
    if theirs is SchedulerInterface and method.startswith("_"):
        pytest.skip("the interface has public methods only")
    assert list(inspect.signature(getattr(theirs, method)).parameters) == list(
        inspect.signature(getattr(OptOut, method)).parameters
    )


def test_what_the_opt_out_reads_and_writes_is_there() -> None:
    fields = SchedulerOutput.__dataclass_fields__
    assert {"scheduled_spec_decode_tokens", "num_scheduled_tokens", "total_num_scheduled_tokens"} <= set(fields)
    assert set(DraftTokenIds.__dataclass_fields__) == {"req_ids", "draft_token_ids"}


def test_the_last_that_vllm_does_to_a_batch_is_to_book_it() -> None:
    """The padding is taken out there: whatever came after would have counted it."""
    lines = [line.strip() for line in inspect.getsource(Scheduler.schedule).splitlines()]
    assert lines[-2:] == ["self._update_after_schedule(scheduler_output)", "return scheduler_output"]
