"""A tool parser that a plug-in file breaks, inside vLLM's own parser classes: the guard heals what it makes."""

import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from support.guard_harness import calls_of, chunk, read, through

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from serve.engine.vllm import host as vllm_host

from serve.config.guard import GuardConfig
from serve.errors import ConfigError
from serve.guard.core import Guard, Outcome
from tests.unit.engine.vllm.parser_harness import NOT_THINKING, OUTPUTS, TOKENIZER, TOOL, Tokenizer, request

PLUGIN = str(Path(__file__).parents[3] / "support" / "faulty_parser.py")
NAME = "faulty_qwen3_coder"


def named(name: str, plugin: str = "") -> Namespace:
    parsers = {"tool_call_parser": name, "reasoning_parser": None}
    return Namespace(**parsers, tool_parser_plugin=plugin, reasoning_parser_plugin="")


def chunks(fault: int) -> list[dict[str, Any]]:
    """The deltas of vLLM's parser over a whole output, as an engine would stream them."""
    from vllm.parser import ParserManager

    vllm_host.load_parsers(named(NAME, PLUGIN))
    asked = request(vllm_xargs={"test_fault": fault})
    made: Any = ParserManager.get_parser(NAME, None, enable_auto_tools=True, tokenizer=TOKENIZER)(
        TOKENIZER, asked.tools, chat_template_kwargs={}
    )
    units = list(Tokenizer.units(OUTPUTS["qwen3_coder"].removeprefix("Well.</think>")))
    prompt = TOKENIZER.encode(NOT_THINKING)
    said = []
    for place, unit in enumerate(units):
        delta = made.parse_delta(unit, TOKENIZER.encode(unit), asked, prompt, finished=place == len(units) - 1)
        if delta is not None:
            said.append(chunk(delta.model_dump(exclude_unset=True)))
    return [*said, chunk({}, "tool_calls")]


def test_a_parser_is_known_once_its_plug_in_is_loaded() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        vllm_host.load_parsers(named("nowhere"))
    vllm_host.load_parsers(named(NAME, PLUGIN))


def test_what_a_faulty_parser_breaks_is_held_back_and_the_rerun_is_delivered() -> None:
    guard = Guard(GuardConfig(), {"messages": [], "tools": [TOOL]})
    message = read(through(guard, chunks(fault=1), chunks(fault=0)))
    assert guard.verdicts[0].outcome is Outcome.TRUNCATED
    assert guard.outcome is Outcome.RERUN
    assert calls_of(message) == [("get_weather", {"city": "Bern", "days": 2})]
