"""A plain answer's text becomes the tokens that its model wrote, or nobody goes on with it."""

import json
import unicodedata
from typing import Any

import pytest

from serve.guard.plain import prefix_of, raw_of, tokens_of
from serve.parsing import StreamParser
from serve.request.continuation import CannotResumeError
from serve.stream.splice import Had


class Engine:
    """Its tokens are characters; `reads` is what it makes of a text."""

    def __init__(self, reads: Any = str) -> None:
        self.reads = reads

    async def ask(self, path: str, body: bytes) -> bytes:
        asked = json.loads(body)
        if path == "/detokenize":
            return json.dumps({"prompt": "".join(map(chr, asked["tokens"]))}).encode()
        if "messages" in asked:
            return b'{"tokens": [1, 2], "count": 2}'
        assert asked["add_special_tokens"] is False
        return json.dumps({"tokens": [*map(ord, self.reads(asked["prompt"]))]}).encode()


def nfc(text: str) -> str:
    return " " + unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("reads", [str, nfc])
async def test_prompt_and_text_are_tokens(reads: Any) -> None:
    got = await tokens_of(Engine(reads).ask, b'{"messages": []}', "e\u0301 好")
    assert got == ([1, 2], [*map(ord, reads("e\u0301 好"))])
    assert (await tokens_of(Engine().ask, [7, 8], "x"))[0] == [7, 8]


@pytest.mark.parametrize(
    ("reads", "text", "reason"),
    [
        (str.lower, "Aha", "token"),
        (str, "it ends with <|im_end|>", "token"),
        (lambda _: "", "x", "no_ids"),
        (str.rstrip, "x ", "token"),
    ],
)
async def test_a_text_that_is_read_as_another_is_not_gone_on_with(reads: Any, text: str, reason: str) -> None:
    with pytest.raises(CannotResumeError, match=reason):
        await tokens_of(Engine(reads).ask, [1], text)


@pytest.mark.parametrize(
    ("thinking", "splits", "had", "raw"),
    [
        (False, True, Had("", "Hi"), "Hi"),
        (True, True, Had("Hm", ""), "Hm"),
        (True, True, Had("Hm", "Hi"), "Hm</think>Hi"),
        (False, True, Had("Hm", "Hi"), "<think>Hm</think>Hi"),
        (True, True, Had("", "Hi"), "</think>Hi"),
        (True, False, Had("", "Hi"), "Hi"),  # perhaps a thought that nobody has told from text
    ],
)
def test_what_a_model_wrote_follows_from_what_its_client_has(thinking: bool, splits: bool, had: Had, raw: str) -> None:
    def parser() -> StreamParser:
        return StreamParser("qwen3_coder", thinking=thinking, calls=False)

    assert raw_of(had, parser(), splits=splits) == raw
    if not splits:
        with pytest.raises(CannotResumeError, match="reasoning"):
            prefix_of(parser(), had, raw, 2, 1)
        return
    delta = prefix_of(parser(), had, raw, 2, 1).delta
    assert (delta.get("reasoning", ""), delta.get("content", "")) == (had.reasoning, had.content)
