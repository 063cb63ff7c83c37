"""A plain stream whose text ends within a token, as its engine held back a possible stop text, goes on there."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from support.guard_stack import chunks_in, post
from support.tokens import resuming

from lab.scripted.arrival import Arrival
from serve.http1.sse import DONE, encode_frame
from serve.telemetry.instruments import Telemetry

ANSWER = "I said hello, and the whole town said hello to me."
VOCABULARY: list[str] = []


class WordModel:
    """An engine whose tokens are words with the blank before them. As vLLM does, it holds back a possible stop text.

    Args:
        answer: To whatever it is asked.
        dies_after: It is lost after so many tokens.

    Attributes:
        prompts: Texts of the answer with which it began.
    """

    def __init__(self, answer: str, dies_after: int | None = None) -> None:
        self.prompts: list[str] = []
        self._answer = answer
        self._dies_after = dies_after

    async def __call__(self, arrival: Arrival) -> None:
        body = json.loads(arrival.body)
        if arrival.path == "/tokenize":
            await arrival.json({"tokens": [0] if "messages" in body else ids_of(body["prompt"])})
        elif arrival.path == "/detokenize":
            await arrival.json({"prompt": text_of(body["tokens"])})
        else:
            await self._write(arrival, body)

    async def _write(self, arrival: Arrival, body: Mapping[str, Any]) -> None:
        kept = body.get("prompt", [0])
        kept = kept[1:] if isinstance(kept, list) else []
        self.prompts.append(text_of(kept))
        tokens = ids_of(self._answer)
        same = next((n for n, (one, other) in enumerate(zip(kept, tokens, strict=False)) if one != other), len(kept))
        rest = [text_of([id_]) for id_ in tokens[same:]]  # where the last token is half of one, the word begins again
        hold = max([len(stop) - 1 for stop in body.get("stop", [])], default=0)
        await arrival.begin()
        text, sent = "", 0
        for number, word in enumerate(rest):
            if number == self._dies_after:
                await arrival.hang_up()
                return
            text += word
            if len(text) - hold > sent:
                await arrival.write(frame(arrival.path, text[sent : len(text) - hold]))
                sent = len(text) - hold
        await arrival.write(frame(arrival.path, text[sent:], "stop") + DONE)


def ids_of(text: str) -> list[int]:
    words = re.findall(r" ?[^ ]+| ", text)
    VOCABULARY.extend(word for word in words if word not in VOCABULARY)
    return [VOCABULARY.index(word) + 1 for word in words]


def text_of(ids: list[int]) -> str:
    return "".join(VOCABULARY[id_ - 1] for id_ in ids)


def frame(path: str, text: str, reason: str | None = None) -> bytes:
    said = {"delta": {"content": text}} if path == "/v1/chat/completions" else {"text": text}
    return encode_frame({"id": "c", "model": "m", "choices": [{"index": 0, **said, "finish_reason": reason}]})


async def answered(
    first: WordModel, second: WordModel, path: str, telemetry: Telemetry | None = None
) -> tuple[str, bool]:
    """What a client has of an answer that the first engine begins, and whether it is complete."""
    asked: dict[str, Any] = {"model": "m", "stream": True, "stop": ["\n\nUser:"]}
    asked |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    async with resuming(first, second, "none", telemetry=telemetry) as (stack, _):
        _, _, body = await post(stack.url, asked, path)
    *chunks, last = chunks_in(body)
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(
        each.get("delta", {}).get("content", "") or each.get("text", "") for each in choices
    ), last == "[DONE]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("lost_after", range(4, 10))
async def test_a_word_of_which_a_part_is_out_is_not_begun_again(path: str, lost_after: int) -> None:
    second = WordModel(ANSWER)
    assert await answered(WordModel(ANSWER, lost_after), second, path) == (ANSWER, True)
    assert len(second.prompts) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_where_another_word_comes_the_answer_goes_on_behind_all_that_is_out(path: str) -> None:
    telemetry = Telemetry({})
    first, second = WordModel(ANSWER, 4), WordModel(ANSWER.replace("hello,", "goodbye,"))
    text, complete = await answered(first, second, path, telemetry)
    assert complete
    assert second.prompts == ["I said", "I said hell"]
    assert text.startswith("I said hell")
    assert (
        'specgate_resumes_total{model="m",outcome="sound",reason="failed"} 1.0'
        in telemetry.metrics.exposition().decode()
    )
