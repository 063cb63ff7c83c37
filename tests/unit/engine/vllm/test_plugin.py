"""What vLLM's processes know once they have loaded the plug-in, as often as they do."""

import warnings
from importlib.metadata import entry_points

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.plugins import DEFAULT_PLUGINS_GROUP
    from vllm.reasoning import ReasoningParserManager
    from vllm.tokenizers.registry import TokenizerRegistry
    from vllm.tool_parsers import ToolParserManager

    from serve.engine.vllm import plugin


def test_vllm_finds_the_plugin_where_it_looks_for_plugins() -> None:
    found = [each.load() for each in entry_points(group=DEFAULT_PLUGINS_GROUP)]
    assert plugin.register in found


def test_its_names_are_known_however_often_it_is_loaded() -> None:
    plugin.register()
    plugin.register()
    assert {"specgate_kimi_k2", "specgate_qwen3_coder", "specgate_hermes"} <= set(ToolParserManager.list_registered())
    assert any(name.startswith("specgate_") for name in ReasoningParserManager.list_registered())
    assert TokenizerRegistry.load_tokenizer_cls("specgate_kimi")
