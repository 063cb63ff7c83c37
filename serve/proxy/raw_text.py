"""Asks an engine for its model's raw text, for pools with `parse: gateway`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from serve.config.gateway import GatewayConfig
from serve.config.grammar import thinking_default
from serve.config.pool import ModelConfig, engine_of
from serve.parsing import StreamParser
from serve.parsing.families import Thinking, thinking_of
from serve.request.completion import MALFORMED, CompletionRequest, Tool
from serve.request.patch import BodyPatch
from serve.request.thinking import starts_inside
from serve.stream.parsed import Parsed


class RawText(NamedTuple):
    """One pool's way to ask for text and to read it.

    Attributes:
        engine: `vllm` or `sglang`.
        grammar: Reads the text.
        thinking: The switch of the model's chat template.
        thinks: Whether the pool's model thinks where a request does not say; None for its template's choice.
    """

    engine: str
    grammar: str
    thinking: Thinking
    thinks: bool | None

    def ask(self, patch: BodyPatch, request: CompletionRequest) -> None:
        """Asks for text with all its special tokens, and for no parsing.

        Without a parser of its own vLLM refuses tools that may be called, but shows them to the model under
        `tool_choice: none`. SGLang hands raw text on under `auto`, and would hold the model to JSON under any choice
        that demands a call.
        """
        patch.set("skip_special_tokens", b"false")
        if not request.tools or request.tool_choice == "none":
            return
        if self.engine == "vllm":
            patch.set("tool_choice", b'"none"')
        elif request.tool_choice not in (None, "auto"):
            patch.set("tool_choice", b'"auto"')

    def reader(self, request: CompletionRequest, *, reports: bool) -> Parsed:
        """Returns the stage that reads the text of an answer; `reports` as of `Parsed`."""
        return Parsed(self.opener(request), self.grammar, reports=reports)

    def opener(self, request: CompletionRequest) -> Callable[[], StreamParser]:
        """Returns what makes a parser for an answer."""
        tools = [] if request.tool_choice == "none" else [_tool(tool) for tool in request.tools or () if tool.function]
        thinking = starts_inside(request, self.thinks, self.thinking)
        return lambda: StreamParser(self.grammar, tools, thinking, calls=bool(tools))


def raw_pools(config: GatewayConfig) -> Mapping[tuple[str, str], RawText]:
    """Returns the pools of which the gateway reads the raw text, by the names of model and pool."""
    return {
        (name, pool_name): raw_text(model, pool_name)
        for name, model, pool_name, pool in config.each_pool()
        if pool.parse == "gateway"
    }


def raw_text(model: ModelConfig, pool: str) -> RawText:
    """Returns the way to read the text of a pool's model, whose grammar is resolved."""
    thinks = thinking_default(model, pool)
    return RawText(engine_of(model.pools[pool]), model.grammar, thinking_of(model.grammar), thinks)


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.function
    assert function is not None
    try:
        parameters = msgspec.json.decode(function.parameters)
    except MALFORMED:
        parameters = {}  # for the engine to refuse
    return {"name": function.name, "parameters": parameters}
