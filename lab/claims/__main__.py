"""`python -m lab.claims`: tries every claim on the vLLM found here; prints one JSON document."""

import json
import logging
import sys

logging.disable(logging.CRITICAL)  # parsers of old versions log every answer that they break

import vllm  # noqa: E402

from lab.claims.table import try_all  # noqa: E402

if __name__ == "__main__":
    json.dump({"version": vllm.__version__, "claims": try_all()}, sys.stdout)
