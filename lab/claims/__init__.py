"""Claims of advisories about vLLM, tried on whatever vLLM can be imported, as far as that takes no weights."""
