"""Edge cases of Kimi's format that the conformance rows do not hold."""

from serve.parsing import parse
from tests.unit.parsing.test_laws import TOOLS

SECTION = "<|tool_calls_section_begin|>"


def test_text_in_front_of_a_call_is_reported_as_it_stands_with_the_end_of_thinking_in_it() -> None:
    noise = "what\n</think>now"
    message = parse(f"Hm.{SECTION}{noise}", "kimi_k2", TOOLS, thinking=True)
    assert [(fault.kind, fault.position, fault.raw) for fault in message.violations] == [
        ("stray_text", len(f"Hm.{SECTION}"), noise)
    ]
    assert (message.reasoning, message.content) == ("Hm.", None)
