"""The demo's requests against the real engines: the main job, end to end."""

import openai
import pytest

from lab import demo

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen"])
@pytest.mark.parametrize("index", range(len(list(demo.examples("any")))))
async def test_the_answer_is_right(client: openai.AsyncOpenAI, model: str, index: int) -> None:
    example = list(demo.examples(model))[index]
    result = await demo.ask(client, model, example)
    assert result.error is None, result.error
    assert example.check(result) is None, example.check(result)


async def test_a_wrong_model_name_is_answered_with_the_known_ones(client: openai.AsyncOpenAI) -> None:
    result = await demo.ask(client, "no-such-model", demo.WRONG_MODEL)
    assert demo.WRONG_MODEL.check(result) is None


async def test_the_run_reports_every_case_and_counts_what_is_wrong(gateway_url: str) -> None:
    said: list[str] = []
    report = await demo.run(gateway_url, ["tiny-qwen"], said.append)
    assert report.table().row_count == len(report.to_dict()) == len(said) == len(list(demo.examples("tiny-qwen"))) + 1
    assert report.right == len(report.rows), said
