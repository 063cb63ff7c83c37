"""A vLLM tool parser that fails on request; a real engine loads it as a plug-in file.

With `vllm_xargs: {"test_fault": 1}` it drops every closing brace of the arguments, like a parser that stops too early.
"""

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage, ExtractedToolCallInformation
from vllm.tool_parsers import ToolParserManager

from serve.engine.vllm.tool_parsers import TOOL_PARSERS, SpecgateToolParser

NAME = "faulty_qwen3_coder"
_Qwen3Coder: type[SpecgateToolParser] = TOOL_PARSERS["specgate_qwen3_coder"]


def _fails(request: Any) -> bool:
    return bool((request.vllm_xargs or {}).get("test_fault"))


def _break(calls: Sequence[Any] | None) -> None:
    for call in calls or ():
        if call.function and call.function.arguments:
            call.function.arguments = call.function.arguments.replace("}", "")


class FaultyParser(_Qwen3Coder):  # type: ignore[misc,valid-type]
    _faulty = False

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        output = super().extract_tool_calls(model_output, request)
        if _fails(request):
            _break(output.tool_calls)
        return output

    def extract_tool_calls_streaming(self, *args: Any, **named: Any) -> DeltaMessage | None:
        request = named.get("request", args[-1] if args else None)
        self._faulty = _fails(request)
        return self._broken(super().extract_tool_calls_streaming(*args, **named))

    def finish_streaming(self) -> DeltaMessage | None:
        return self._broken(super().finish_streaming())

    def _broken(self, delta: DeltaMessage | None) -> DeltaMessage | None:
        if self._faulty and delta is not None:
            _break(delta.tool_calls)
        return delta


ToolParserManager.register_module(NAME, module=FaultyParser)
