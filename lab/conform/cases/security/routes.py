"""Routes that are not for everybody: the engine's own, and the operator's."""

import asyncio
import json

from lab.conform.case import Case, CaseResult, not_applicable, passed_if
from lab.conform.lab import Lab
from lab.conform.raw import connect, exchange, head, statuses

_ENGINE_ROUTES = (
    "/invocations", "/scale_elastic_ep", "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc",
    "/update_weights", "/flush_cache", "/start_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
)  # fmt: skip
_OPERATOR_ROUTES = ("/v1/route/explain", "/admin/v1/quarantine")
_LARGE = 64 * 2**20
_ENOUGH = 16 * 2**20  # more than the buffers of sockets and proxies can hold
_PIECE = b"x" * 2**16
_REFUSALS = (401, 403, 415)
_STRANGER = {"origin": "https://conform.example", "content-type": "text/plain"}


def spellings(path: str) -> tuple[str, ...]:
    """Returns ways to write a path that a proxy which admits by prefix may overlook."""
    name = path.rpartition("/")[2]
    folder = path.removesuffix(name)
    encoded = f"{folder}%{ord(name[0]):02x}{name[1:]}"
    return path, encoded, f"/{path}", f"/v1/chat/../..{path}", f"{path}/", f"{path}?x=1"


async def _post(lab: Lab, path: str, headers: dict[str, str], body: bytes) -> int:
    lines = f"content-length: {len(body)}"
    found = statuses(await exchange(lab.url, head(lab.url, headers, lines, path) + body, quiet_s=0.2))
    return found[0] if found else 0


async def engine_routes(lab: Lab) -> CaseResult:
    """By raw bytes: an HTTP client would clean the path up."""
    paths = [spelling for path in _ENGINE_ROUTES for spelling in spellings(path)]
    trial = lab.trial()
    body = json.dumps(lab.body(trial)).encode()
    found = await asyncio.gather(*(_post(lab, path, lab.headers(), body) for path in paths))
    wrong = sorted({arrival.path for arrival in [*lab.engine.strays, *trial.arrivals]})
    wrong += [f"{path}: HTTP {status}" for path, status in zip(paths, found, strict=True) if 200 <= status < 300]
    return passed_if(not wrong, f"served: {', '.join(wrong)}" if wrong else f"none of {len(paths)} served")


async def _operator_routes(lab: Lab) -> list[str]:
    """Returns the operator's routes that the gateway has."""
    answers = [await _post(lab, path, lab.headers(), b"{}") for path in _OPERATOR_ROUTES]
    return [path for path, status in zip(_OPERATOR_ROUTES, answers, strict=True) if status not in (0, 404, 405)]


async def operator_strangers(lab: Lab) -> CaseResult:
    """Sends what the page of another site can send through a browser, which has no token."""
    routes = await _operator_routes(lab)
    if not routes:
        return not_applicable("the gateway has none of the operator's routes that are known here")
    ways = {"foreign origin": {**_STRANGER, "content-type": "application/json"}, "text/plain": _STRANGER}
    tried = [(path, way) for route in routes for path in spellings(route) for way in ways]
    found = await asyncio.gather(*(_post(lab, path, ways[way], b"{}") for path, way in tried))
    wrong = [
        f"{path}, {way}: HTTP {status}"
        for (path, way), status in zip(tried, found, strict=True)
        if not 300 <= status < 500  # a redirect admits nobody
    ]
    for route in routes:
        status = await _post(lab, route, ways["foreign origin"], b"{}")
        if status not in _REFUSALS:
            wrong.append(f"{route}: HTTP {status} judged the body, not the origin")
    return passed_if(not wrong, f"admitted: {', '.join(wrong)}" if wrong else f"{len(routes)} routes admit nobody")


async def cross_site(lab: Lab) -> CaseResult:
    """A form of another site can send this without a preflight; it has no token."""
    trial = lab.trial()
    status = await _post(lab, "/v1/chat/completions", _STRANGER, json.dumps(lab.body(trial)).encode())
    reached = "reached" if trial.arrivals else "did not reach"
    return passed_if(not trial.arrivals, f"HTTP {status}; the request {reached} the engine")


async def operator_body(lab: Lab) -> CaseResult:
    routes = await _operator_routes(lab)
    if not routes:
        return not_applicable("the gateway has none of the operator's routes that are known here")
    taken = [await _taken(lab, route) for route in routes]
    seen = ", ".join(f"{route} took {size / 2**20:.1f} MB" for route, size in zip(routes, taken, strict=True))
    return passed_if(max(taken) <= _ENOUGH, seen)


async def _taken(lab: Lab, path: str) -> int:
    """Returns how many bytes of a body are taken before the connection ends or an answer begins."""
    reader, writer = await connect(lab.url)
    taken = 0
    answer = asyncio.create_task(reader.read(1))
    try:
        writer.write(head(lab.url, lab.headers(), f"content-length: {_LARGE}", path))
        while taken < _LARGE and not answer.done():
            writer.write(_PIECE)
            async with asyncio.timeout(3):
                await writer.drain()
            await asyncio.sleep(0)
            taken += len(_PIECE)
    except (TimeoutError, OSError):
        pass  # refused, or no longer read
    finally:
        answer.cancel()
        writer.close()
        await asyncio.gather(answer, return_exceptions=True)
    return taken


CASES = (
    Case("engine-routes", "Management routes of engines can't be reached, however they are written.",
         "vLLM's `/invocations` and others ask for no key", engine_routes),
    Case("cross-site", "A request that a page of another site can make without a preflight reaches no engine.",
         "CSRF, CWE-352", cross_site),
    Case("operator-strangers", "Operators' routes refuse other sites' pages, however the path is written.",
         "CSRF, CWE-352", operator_strangers),
    Case("operator-body", "Operators' routes do not read a body of 64 MB.", "CWE-770", operator_body),
)  # fmt: skip
