"""The dialects, by the path of their requests. Another dialect is another row."""

from collections.abc import Mapping

from serve.dialects.dialect import CHAT_PATH, Dialect
from serve.dialects.messages import COUNT_TOKENS, MESSAGES
from serve.dialects.responses.dialect import RESPONSES
from serve.errors import InvalidRequestError

DIALECTS: dict[str, Dialect] = {
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
    "/v1/responses": RESPONSES,
}


def as_chat(body: bytes, headers: Mapping[str, str], api: str) -> bytes:
    """Returns the chat body that a body of another API stands for.

    Args:
        body: The request's.
        headers: From `request_headers`.
        api: `chat`, which includes text completions, or the name of a dialect.

    Raises:
        InvalidRequestError: No dialect has that name, or the body is wrong.
    """
    if api == "chat":
        return body
    dialects = {dialect.name: dialect for dialect in DIALECTS.values() if dialect.engine_path == CHAT_PATH}
    if api not in dialects:
        raise InvalidRequestError(f"`api` must be one of chat, {', '.join(dialects)}, not {api!r}.", "api")
    return dialects[api].decode(body, headers).body
