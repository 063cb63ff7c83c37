"""Streamed and whole answers of real engines agree, with speculation on, at every draft length."""

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from bench.streams import differences
from models.dialogues import held_out

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen", "tiny-qwen-ngram"])
async def test_streamed_and_whole_answers_agree_through_the_gateway(client: openai.AsyncOpenAI, model: str) -> None:
    assert await differences(client, model, held_out(40)) == []


@pytest.mark.timeout(900)
def test_streamed_and_whole_answers_agree_at_every_other_draft_length() -> None:
    """The session's engines draft 3; here one engine after the other drafts 1, 2, 4 and 5."""
    command = [sys.executable, "-m", "bench.streams", "--models", "tiny-kimi", "--drafts", "1,2,4,5", "--prompts", "25"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["drafts"] for row in rows] == [1, 2, 4, 5], done.stderr[-2000:]
    assert [row["different"] for row in rows] == [0, 0, 0, 0], rows
