"""Runs the tool loops of one client library and prints what came of each: what a test in another environment judges.

The scripts beside this one run in environments of their own (`requirements/agents`), where nothing of specgate is.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

MODEL = os.environ.get("SPECGATE_MODEL", "m")
QUESTION = "What is the weather in Osaka?"
TEMPERATURE = 0  # a real model says the same every time
TIMEOUT_S = 120


class Weather:
    """The tool, which remembers what it was called with.

    Attributes:
        cities: Of all its calls.
        tokens: Written by the model in the whole loop, as the library counted them. A streamed answer tells them at its
            end: a library that knows them has read that far.
    """

    def __init__(self) -> None:
        self.cities: list[str] = []
        self.tokens = 0

    def get_weather(self, city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        self.cities.append(city)
        return f"21 degrees in {city}"


# One conversation: takes the gateway's URL and the tool, and returns the final answer.
Loop = Callable[[str, Weather], Awaitable[str]]


def main(loops: Mapping[str, Loop]) -> None:
    """Runs each loop once against each of the URLs that the command line names, and prints a line of JSON for each.

    Such a line is an object: by the loop's name its answer or error, and the tool's calls.
    """
    left_out = os.environ.get("SPECGATE_LEFT_OUT")  # a word in the names of loops that do not run
    chosen = {name: loop for name, loop in loops.items() if not left_out or left_out not in name}
    asyncio.run(_run(sys.argv[1:], chosen))


async def _run(urls: Sequence[str], loops: Mapping[str, Loop]) -> None:
    for url in urls:
        print(json.dumps(await _outcomes(url, loops)))


async def _outcomes(url: str, loops: Mapping[str, Loop]) -> dict[str, dict[str, object]]:
    outcomes = {}
    for name, loop in loops.items():
        weather = Weather()
        answer = error = ""
        try:
            answer = await asyncio.wait_for(loop(url, weather), TIMEOUT_S)
        except Exception as raised:  # noqa: BLE001 - which error a library raises is its own affair
            error = f"{type(raised).__name__}: {raised}"
        outcomes[name] = {"answer": answer, "error": error, "cities": weather.cities, "tokens": weather.tokens}
    return outcomes
