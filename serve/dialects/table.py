"""The dialects, by the path of their requests. Another dialect is another row."""

from serve.dialects.dialect import Dialect
from serve.dialects.messages import COUNT_TOKENS, MESSAGES
from serve.dialects.responses.dialect import RESPONSES

DIALECTS: dict[str, Dialect] = {
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
    "/v1/responses": RESPONSES,
}
