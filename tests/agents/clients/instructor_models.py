"""Instructor: documents by a forced call and by a schema, over all three APIs."""

import instructor
from anthropic import AsyncAnthropic
from harness import MODEL, Loop, Weather, main
from openai import AsyncOpenAI
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Plan a trip."}]


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


def document(mode: instructor.Mode) -> Loop:
    async def run(url: str, _: Weather) -> str:
        if mode is instructor.Mode.ANTHROPIC_TOOLS:
            patched = instructor.from_anthropic(AsyncAnthropic(base_url=url, api_key="none", max_retries=0), mode=mode)
        else:
            openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            patched = instructor.from_openai(openai, mode=mode)
        asked = {"messages": QUESTION, "response_model": Trip, "max_retries": 0, "max_tokens": 2000}
        return (await patched.create(model=MODEL, **asked)).model_dump_json()

    return run


MODES = ("RESPONSES_TOOLS", "ANTHROPIC_TOOLS", "TOOLS", "JSON_SCHEMA")
main({f"{mode} document": document(instructor.Mode[mode]) for mode in MODES})
