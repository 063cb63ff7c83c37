"""Limits of the schemas in a request: the guard reads them, and a client could make that take for ever."""

import msgspec

from serve.config.gateway import LimitsConfig
from serve.errors import InvalidRequestError
from serve.request.completion import NONE, Choice, CompletionRequest
from serve.request.structured import schema_of


def check_schemas(request: CompletionRequest, limits: LimitsConfig) -> None:
    """Refuses a request whose schemas are larger than any that is meant well.

    Raises:
        InvalidRequestError: A schema, or all of them together, is over a limit.
    """
    tools = request.tools or ()
    if len(tools) > limits.max_tools:
        raise _over(f"more tools ({len(tools)})", "max_tools", limits.max_tools, "tools")
    choice = request.tool_choice
    allowed = choice.allowed_tools if isinstance(choice, Choice) else None
    if allowed is not None and len(allowed.tools or ()) > limits.max_tools:
        raise _over("more allowed tools", "max_tools", limits.max_tools, "tool_choice")
    form = request.response_format
    schemas = [(bytes(tool.function.parameters), "tools") for tool in tools if tool.function]
    if form is not None and form.json_schema is not None:
        schemas.append((bytes(form.json_schema.schema), "response_format"))
    if request.structured_outputs is not NONE:
        schemas.append((schema_of(request.structured_outputs), "structured_outputs"))
    size = 0
    nodes = 0
    for schema, param in schemas:
        size += len(schema)
        if size > limits.max_schema_bytes:
            raise _over("schemas with more bytes", "max_schema_bytes", limits.max_schema_bytes, param)
        containers = schema.count(b"{") + schema.count(b"[")
        most = containers + schema.count(b",") + schema.count(b":")
        if containers > limits.max_schema_depth or nodes + most > limits.max_schema_nodes:
            most = _nodes(schema, limits, param)
        nodes += most
        if nodes > limits.max_schema_nodes:
            raise _over("schemas with more values", "max_schema_nodes", limits.max_schema_nodes, param)


def _nodes(schema: bytes, limits: LimitsConfig, param: str) -> int:
    """Returns the number of values in a schema, or one over the limit."""
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InvalidRequestError(f"The request has a schema that can't be read: {error}.", param=param) from error
    level = [root] if isinstance(root, dict | list) else []
    nodes = 1
    depth = 0
    while level:
        nodes += sum(map(len, level))
        if nodes > limits.max_schema_nodes:
            break
        level = [
            part
            for value in level
            for part in (value.values() if type(value) is dict else value)
            if type(part) is dict or type(part) is list
        ]
        depth += 1
        if level and depth > limits.max_schema_depth:
            raise _over("a schema with more levels", "max_schema_depth", limits.max_schema_depth, param)
    return nodes


def _over(what: str, setting: str, limit: int, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request has {what} than this gateway allows: limits.{setting} is {limit}.", param=param
    )
