"""What counts as a right answer when the stand-ins are measured."""

from random import Random

import pytest

from models.catalogue import Tool
from models.dialogues import Call, Dialogue, dialogue
from models.evaluate import is_right
from models.render import answer_text

MODELS = ("tiny-kimi", "tiny-qwen")
TOOL = Tool("book", (("city", "string"), ("days", "integer")))


def _asked(arguments: dict[str, object]) -> Dialogue:
    asked = {"role": "user", "content": "book it"}
    return Dialogue("single", (asked,), (TOOL,), False, "", calls=(Call("book", arguments),))


def _said(model: str, d: Dialogue) -> str:
    return answer_text(model, d).removesuffix("<|im_end|>")


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_that_training_shows_is_right(model: str) -> None:
    r = Random(3)
    for d in (dialogue(r) for _ in range(200)):
        assert is_right(model, d, _said(model, d))


@pytest.mark.parametrize("model", MODELS)
def test_the_order_of_arguments_means_nothing_and_their_values_everything(model: str) -> None:
    wanted = _asked({"city": "Oslo", "days": 2})
    assert is_right(model, wanted, _said(model, _asked({"days": 2, "city": "Oslo"})))
    assert not is_right(model, wanted, _said(model, _asked({"city": "Oslo", "days": 3})))
    assert not is_right(model, wanted, _said(model, _asked({"city": "Oslo"})))


@pytest.mark.parametrize("model", MODELS)
def test_a_call_that_is_cut_is_wrong(model: str) -> None:
    d = _asked({"city": "Oslo", "days": 2})
    assert not is_right(model, d, _said(model, d).partition("slo")[0])
