"""The apps that respond to inference requests, by path: what bypasses the web framework."""

from serve.dialects.api import DIALECTS, ContextOf, DialectApi
from serve.dialects.dialect import Dialect
from serve.gateway.pipeline import Gateway
from serve.http1.asgi import AsgiApp, Receive, Scope, Send
from serve.request.completion import COMPLETION_PATHS


class DialectApp:
    """Responds to requests in one dialect.

    Args:
        gateway: Serves the chat requests that they stand for.
        dialect: Translates.
        context_of: Returns the tokens of a model's context, given any of its names, if they are known.
    """

    def __init__(self, gateway: Gateway, dialect: Dialect, context_of: ContextOf) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._context_of = context_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to one POST, as `Gateway.__call__` does."""
        await self._gateway.respond(DialectApi(self._dialect, self._context_of), scope, receive, send)


def hot_routes(gateway: Gateway, context_of: ContextOf = lambda _: None) -> dict[str, AsgiApp]:
    """Returns the apps that respond to completions, by the path of their POST requests.

    Args:
        gateway: Serves them.
        context_of: As for `DialectApp`.
    """
    translated = {path: DialectApp(gateway, dialect, context_of) for path, dialect in DIALECTS.items()}
    return {**dict.fromkeys(COMPLETION_PATHS, gateway), **translated}
