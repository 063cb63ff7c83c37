"""The engine's own report on speculation, found in the last bytes of a response without decoding the rest.

vLLM (`per-request-spec-decode-metrics`) and our simulated engine put it into the last chunk of a stream that carries
usage, and into every whole response.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

# Within a JSON string the quotes would be escaped: text of a model can't imitate the member.
_MEMBER = b'"speculative_decoding":'
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d{1,9})\b')
_DECODER = json.JSONDecoder()
_LONGEST = 4096


class SpecReport(NamedTuple):
    """The drafts of one request.

    Attributes:
        steps: Steps with drafts.
        accepted: Drafted tokens that were accepted.
    """

    steps: int
    accepted: int


def completion_tokens(parts: Iterable[bytes]) -> int | None:
    """Returns the length of the answer as the usage in the last parts of a response states it; None without usage."""
    found = _TOKENS.findall(b"".join(parts))
    return int(found[-1]) if found else None


def spec_report(parts: Iterable[bytes]) -> SpecReport | None:
    """Returns the report in the last parts of a response; None if there is none, or no draft was made."""
    data = b"".join(parts)
    start = data.rfind(_MEMBER)
    if start < 0:
        return None
    start += len(_MEMBER)
    text = data[start : start + _LONGEST].lstrip().decode("utf-8", "replace")
    try:
        found, _ = _DECODER.raw_decode(text)
    except ValueError:  # cut off, or not the engine's
        return None
    if not isinstance(found, dict):
        return None
    steps, accepted, drafted = (
        found.get(name) for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    if not (isinstance(steps, int) and isinstance(accepted, int) and isinstance(drafted, int)):
        return None
    return SpecReport(steps, accepted) if steps > 0 and 0 <= accepted <= drafted else None
