"""vLLM inside an engine replica. The only package that imports vLLM."""
