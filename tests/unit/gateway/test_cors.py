"""Pages of other sites may read inference routes, of the sites that the configuration names, and nothing else."""

from typing import Any

import httpx
import pytest

from serve.gateway.cors import InferenceCors, with_cors

ORIGIN = {"origin": "https://app.example.com"}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def allowed(served: Any, path: str, origin: str = "https://app.example.com") -> str | None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://gateway") as client:
        return (await client.get(path, headers={"origin": origin})).headers.get("access-control-allow-origin")


def test_without_sites_an_app_stays_as_it_is() -> None:
    assert with_cors(app, ()) is app


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/v1/chat/completions", True), ("/v1/models", True), ("/v1/models/m", True), ("/v1/modelsx", False),
        ("/v1/route/explain", False), ("/metrics", False), ("/", False),
    ],
)  # fmt: skip
async def test_only_inference_is_shared_with_other_sites(path: str, shared: bool) -> None:
    served = InferenceCors(app, ["https://app.example.com"], ["/v1/chat/completions"])
    assert (await allowed(served, path) is not None) is shared
    assert await allowed(served, path, "https://evil.example.com") is None
