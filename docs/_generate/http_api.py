"""Errors, routes, and what of a request reaches engines, from the code."""

from collections.abc import Iterable, Iterator

from docs._generate.descriptions import ERRORS, ROUTES
from docs._generate.markdown import code, table
from serve.admin.authorization import ANY_KEY, OPEN, RouteRule, Rules
from serve.errors import GatewayError
from serve.proxy.headers import PASSED_TO_ENGINE
from serve.request.field_rules import ACTIONS, REFUSE, STRIP

_FINER = {
    "invalid_json": 400,
    "missing_field": 400,
    "field_not_allowed": 400,
    "media_not_allowed": 400,
    "over_limit": 400,
    "engine_stalled": 502,
    "not_found": 404,
}
_DONE = ((REFUSE, "400 `field_not_allowed`, unless null or false"), (STRIP, "taken out"))


def errors() -> list[tuple[int, str, str]]:
    """Returns (status, code, type) of every error that a client can get, in order of status."""
    classes: list[type[GatewayError]] = [GatewayError, *_subclasses(GatewayError)]
    tree = {(error.status, error.default_code, error.type) for error in classes}
    types = {status: kind for status, _, kind in tree}
    finer = {(status, name, types[status]) for name, status in _FINER.items()}
    return sorted(tree | finer)


def errors_table() -> str:
    """Returns the table of error codes."""
    rows = [(str(status), code(name), code(kind), ERRORS.get(name, "")) for status, name, kind in errors()]
    return table(("status", "code", "type", "meaning, and what to do"), rows)


def routes_table(rules: Rules) -> str:
    """Returns the table of one port's routes."""
    rows = [
        (code(f"{method} {path}"), _scope(rule), ROUTES.get((method, path), ""))
        for path, methods in sorted(rules.items())
        for method, rule in sorted(methods.items())
    ]
    return table(("route", "scope", "meaning"), rows)


def engine_fields_table() -> str:
    """Returns the table of fields that do not reach an engine."""
    rows = [(_codes(name for name, action in ACTIONS.items() if action == done), meaning) for done, meaning in _DONE]
    return table(("fields", "what becomes of them"), rows)


def engine_headers() -> str:
    """Returns the list of the client's headers that reach an engine."""
    return _codes(PASSED_TO_ENGINE)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(code, sorted(names)))


def _scope(rule: RouteRule) -> str:
    return {OPEN: "none", ANY_KEY: "any"}.get(rule.scope) or code(rule.scope)


def _subclasses(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for subclass in error.__subclasses__():
        if subclass.__module__ == GatewayError.__module__:
            yield subclass
            yield from _subclasses(subclass)
