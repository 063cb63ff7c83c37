"""Rules inside the engine: grammar backends, white space, and what a drafter does to the prefix cache."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from vllm.config.speculative import SpeculativeConfig
from vllm.exceptions import VLLMValidationError

_SPACES = 2000


def other_backend_refused() -> Iterator[bool]:
    """Yields whether a request whose schema needs another backend than the one in use is refused."""
    from vllm.v1.structured_output import StructuredOutputManager  # old versions need packages for it that are not here

    for used, needed in (("XgrammarBackend", "guidance"), ("GuidanceBackend", "xgrammar")):
        manager: Any = object.__new__(StructuredOutputManager)
        manager.backend = type(used, (), {})()
        manager._backend_name = manager._backend = manager.backend_name = used.removesuffix("Backend").lower()
        manager._use_async_grammar_compilation = False
        manager._create_grammar = lambda request: "grammar"
        outputs = SimpleNamespace(_backend=needed)
        request = SimpleNamespace(
            structured_output_request=SimpleNamespace(grammar=None),
            sampling_params=SimpleNamespace(structured_outputs=outputs),
        )
        try:
            manager.grammar_init(request)
        except (ValueError, VLLMValidationError):
            yield True
        else:
            yield False


def endless_white_space() -> Iterator[bool]:
    """Yields whether the grammar of a schema lets a model write white space without an end, as vLLM compiles it."""
    xgrammar = import_module("xgrammar")  # the one that vLLM brings along
    vocabulary = ["{", "}", " ", "\n", '"', "a", ":", "1", "<eos>"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[8]))
    for blank in (" ", "\n"):
        grammar = compiler.compile_json_schema('{"type": "object"}', any_whitespace=True)
        matcher = xgrammar.GrammarMatcher(grammar)
        yield matcher.accept_token(0) and all(matcher.accept_token(vocabulary.index(blank)) for _ in range(_SPACES))


def drops_a_block_for(method: str) -> bool:
    """Returns whether a drafter of this method makes the prefix cache drop a block."""
    config: Any = object.__new__(SpeculativeConfig)  # a real one reads the drafter's weights
    config.method, config.disable_eagle_block_drop = method, False
    return bool(config.use_eagle_block_drop() if hasattr(config, "use_eagle_block_drop") else config.use_eagle())


def dflash_drops() -> Iterator[bool]:
    """Yields whether DFlash and DSpark are treated as EAGLE is."""
    yield from (drops_a_block_for(method) for method in ("dflash", "dspark"))
