"""What specgate adds to vLLM, registered in every process that vLLM starts.

Named as a `vllm.general_plugins` entry point, so that the API process, the engine core (whose grammar gate needs the
reasoning parser and the tokenizer) and its workers all know our names. It adds names and, on the CPU, mends sampling.
"""


def register() -> None:
    """Add our tool parsers, reasoning parsers and tokenizer mode to vLLM's registries; safe to call again."""
    from serve.engine import vllm_cpu_sampling, vllm_parsers, vllm_tokenizer

    vllm_parsers.register()
    vllm_tokenizer.register()
    vllm_cpu_sampling.register()
