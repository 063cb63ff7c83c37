"""The dialects, by the path of their requests. Another dialect is another row."""

from collections.abc import Mapping

from serve.dialects.dialect import Dialect
from serve.dialects.messages import COUNT_TOKENS, ID_HEADER, MESSAGES, PATH, encode_refusal
from serve.dialects.messages.models import VERSION_HEADER
from serve.dialects.responses.dialect import RESPONSES
from serve.errors import GatewayError, InvalidRequestError
from serve.request.completion import CHAT_PATH

DIALECTS: dict[str, Dialect] = {
    PATH: MESSAGES,
    f"{PATH}/count_tokens": COUNT_TOKENS,
    "/v1/responses": RESPONSES,
}


def as_chat(body: bytes, api: str) -> bytes:
    """Returns the chat body that a body of another API stands for.

    Args:
        body: The request's.
        api: `chat`, which includes text completions, or the name of a dialect.

    Raises:
        InvalidRequestError: No dialect has that name, or the body is wrong.
    """
    if api == "chat":
        return body
    dialects = {dialect.name: dialect for dialect in DIALECTS.values() if dialect.engine_path == CHAT_PATH}
    if api not in dialects:
        raise InvalidRequestError(f"`api` must be one of chat, {', '.join(dialects)}, not {api!r}.", param="api")
    return dialects[api].decode(body).body


def refusal(
    error: GatewayError, path: str, headers: Mapping[str, str], request_id: str
) -> tuple[int, bytes, dict[str, str]]:
    """Returns status, body and headers of an error response outside every exchange, in the shape of the client's API.

    Args:
        error: What the client gets.
        path: Of the request; there need be no such route.
        headers: The request's, by lower-case name: clients of the Messages API name its version.
        request_id: For the response.
    """
    is_messages = path == PATH or path.startswith(f"{PATH}/")
    if not is_messages and VERSION_HEADER not in headers:
        return error.status, error.to_json(), error.headers
    status, body = encode_refusal(error, request_id)
    return status, body, {**error.headers, ID_HEADER: request_id}
