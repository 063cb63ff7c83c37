"""The APIs that clients speak besides chat completions, as their strictest clients read them."""

from lab.conform.apis.messages import MESSAGES
from lab.conform.apis.responses import RESPONSES

APIS = (MESSAGES, RESPONSES)

__all__ = ["APIS", "MESSAGES", "RESPONSES"]
