"""Errors and routes of the gateway's HTTP API, from the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import serve
from docs._generate.descriptions import ERRORS, ROUTES
from docs._generate.markdown import code, table
from serve.errors import GatewayError

_SERVE = Path(serve.__file__).parent
_FINER = {
    "invalid_json": 400,
    "missing_field": 400,
    "field_not_allowed": 400,
    "media_not_allowed": 400,
    "over_limit": 400,
    "engine_stalled": 502,
    "not_found": 404,
}


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


def routes() -> list[tuple[str, str]]:
    """Returns (method, path) of every route, in alphabetical order of paths."""
    found: set[tuple[str, str]] = set()
    for path in sorted((*_SERVE.glob("gateway/*.py"), *_SERVE.glob("quarantine/*.py"), _SERVE / "dialects/table.py")):
        found.update(_routes_of(ast.parse(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda route: (route[1], route[0]))


def routes_table() -> str:
    """Returns the table of routes."""
    return table(("route", "meaning"), [(code(f"{how} {path}"), ROUTES.get((how, path), "")) for how, path in routes()])


def _subclasses(error: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for subclass in error.__subclasses__():
        if subclass.__module__ == GatewayError.__module__:
            yield subclass
            yield from _subclasses(subclass)


def _routes_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields routes by their literals: `router.get("/..")`, `add_api_route("/..", methods=[..])`, `{"/v1/..": app}`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (("POST", path) for path in map(_path_of, node.keys) if path)
        elif isinstance(node, ast.Call) and node.args and (path := _path_of(node.args[0])):
            yield from ((method, path) for method in _methods_of(node))


def _path_of(node: ast.expr | None) -> str | None:
    """Returns the literal if it is a path."""
    literal = node.value if isinstance(node, ast.Constant) else None
    return literal if isinstance(literal, str) and literal.startswith("/") else None


def _methods_of(call: ast.Call) -> list[str]:
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "post"):
        return [call.func.attr.upper()]
    named = [keyword.value for keyword in call.keywords if keyword.arg == "methods"]
    return [method for methods in named for method in ast.literal_eval(methods) if method != "HEAD"]
