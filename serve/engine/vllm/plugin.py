"""Registers specgate's additions in every process that vLLM starts.

This is a `vllm.general_plugins` entry point, so the API process, the engine core (whose grammar gate needs the
reasoning parser and the tokenizer) and its workers all know our names. It adds names and, on the CPU, fixes sampling.
It also ends the engine's processes when their parent is gone.
"""


def register() -> None:
    """Add our tool parsers, reasoning parsers and tokenizer mode to vLLM's registries; safe to call again."""
    from serve.engine.vllm import cpu_sampling as vllm_cpu_sampling
    from serve.engine.vllm import parent_watch
    from serve.engine.vllm import tokenizer as vllm_tokenizer
    from serve.engine.vllm import tool_parsers as vllm_parsers

    vllm_parsers.register()
    vllm_tokenizer.register()
    vllm_cpu_sampling.register()
    parent_watch.end_with_parent()
