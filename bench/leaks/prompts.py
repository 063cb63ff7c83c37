"""Requests: plain ones, and such as quote markup in the places where agents put it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.leaks.case import TOOLS, tool, written
from bench.leaks.sources import files
from lab.sim.segments import PlannedCall

_FILE_CHARS = 30_000
_EXAMPLES = (
    PlannedCall("read_file", {"path": "/repo/src/auth.py"}),
    PlannedCall("bash", {"command": "node server.js &"}),
    PlannedCall("write_file", {"path": "/repo/tests/test_auth.py", "content": "def test_login():\n    assert True\n"}),
)
_ALL_MARKUP = (
    "<tool_call> </tool_call> <function=bash> </function> <parameter=command> </parameter> <think> </think> <tool_code>"
    " <|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>"
    " <|tool_calls_section_end|> <|im_start|> <|im_end|> <|im_assistant|> <|endoftext|> <|reserved_token_16|> \ufffd"
)


def prompts(grammar: str) -> Mapping[str, Mapping[str, Any]]:
    """Returns bodies of requests by what is special about them."""
    plain: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": "What does the project do? Look into its files."},
    ]
    user = plain[1]
    shown = "\n\n".join(f"user: do it\nmodel: {written(grammar, each)}" for each in _EXAMPLES)
    system = f"You are a coding agent. Examples:\n\n{shown}\n\nNever print a call that you want to make."
    leak = written(grammar, _EXAMPLES[0])
    log = f"2026-11-02 10:12:07 ERROR parser: unexpected text {leak!r}\nall markers: {_ALL_MARKUP}"
    described = [
        *TOOLS[:4],
        tool("bash", ["command"], ["description"], f"Runs a command. Write {written(grammar, _EXAMPLES[1])}"),
        *TOOLS[5:],
    ]
    _, source = max(((name, text) for name, text in files() if "parser" in name), key=lambda each: each[1].count("<"))
    reads = {"id": "functions.read_file:0", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    return {
        "plain": {"messages": plain, "tools": [*TOOLS]},
        "example calls in the system prompt": {
            "messages": [{"role": "system", "content": system}, user],
            "tools": [*TOOLS],
        },
        "an earlier leak": {
            "messages": [
                *plain,
                {"role": "assistant", "content": f"Let me look.\n{leak}"},
                {"role": "user", "content": "You printed that instead of calling the tool. Try again."},
            ],
            "tools": [*TOOLS],
        },
        "a pasted log": {"messages": [plain[0], {"role": "user", "content": log}], "tools": [*TOOLS]},
        "a parser's source as a result": {
            "messages": [
                *plain,
                {"role": "assistant", "content": None, "tool_calls": [reads]},
                {"role": "tool", "tool_call_id": reads["id"], "content": source[:_FILE_CHARS]},
                {"role": "user", "content": "Go on."},
            ],
            "tools": [*TOOLS],
        },
        "markup in a tool's description": {"messages": plain, "tools": described},
        "backslashes": {
            "messages": [
                plain[0],
                {
                    "role": "user",
                    "content": "In C:\\users\\me: \\usepackage{x}, PS1='\\u@\\h', '\\u{7f}', \\u00e9, \\u",
                },
            ],
            "tools": [*TOOLS],
        },
    }
