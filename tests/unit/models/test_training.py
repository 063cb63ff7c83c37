"""What training rests on: weights on the answer, rows of the shared network, heads that copy before any training."""

import warnings
from pathlib import Path
from random import Random

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised on import
    torch = pytest.importorskip("torch")
    from models import network
    from models.batches import PROMPT_WEIGHT, collate, example, repetition, to_rows
    from models.network import give_copying_heads

from models.vocabulary import BASE_SIZE, KIMI_NAMED, QWEN_SPECIAL


def test_the_answer_counts_and_the_prompt_hardly() -> None:
    batch = collate([example(Random(seed)) for seed in range(4)])
    weights = {round(weight, 6) for weight in batch.weights.unique().tolist()}
    assert weights <= {0.0, PROMPT_WEIGHT, 1.0}
    assert bool((batch.inputs[batch.weights == 0] == 0).all())


def test_both_vocabularies_share_the_ranks_and_nothing_else() -> None:
    kimi, qwen = set(network.rows("tiny-kimi")), set(network.rows("tiny-qwen"))
    assert kimi & qwen == set(range(BASE_SIZE))
    assert kimi | qwen == set(range(network.ROWS))


@pytest.mark.parametrize(("model", "count"), [("tiny-kimi", 256), ("tiny-qwen", len(QWEN_SPECIAL))])
def test_an_id_is_the_row_that_its_folder_gets(model: str, count: int) -> None:
    ids = list(range(BASE_SIZE + count))
    assert to_rows(model, ids) == network.rows(model)


def test_the_named_block_has_the_originals_size() -> None:
    assert max(offset for offset, _, _ in KIMI_NAMED) < network.KIMI_SPECIAL_COUNT


def test_given_heads_copy_random_tokens_without_training() -> None:
    torch.manual_seed(0)
    net = network.build(network.DRAFT_SHAPE)
    give_copying_heads(net)
    r = Random(0)
    batch = collate([repetition(r) for _ in range(8)])
    with torch.no_grad():
        guess = net(input_ids=batch.inputs[:, :-1], use_cache=False).logits.argmax(-1)
    repeated = batch.weights[:, 1:] == 1.0
    repeated[:, :45] = False  # by then every sequence is in its second or third round
    assert float((guess == batch.inputs[:, 1:])[repeated].float().mean()) > 0.6


def test_what_was_exported_is_restored_to_go_on_from(tmp_path: Path) -> None:
    shape = {**network.DRAFT_SHAPE, "num_hidden_layers": 1}
    first, second = network.build(shape), network.build(shape)
    folders = {model: tmp_path / model for model in network.MODELS}
    for model, folder in folders.items():
        network.export(first, shape, model, folder)
    network.restore(second, folders)
    wanted, got = first.state_dict(), second.state_dict()
    assert all(torch.equal(wanted[name].bfloat16(), got[name].bfloat16()) for name in wanted)
