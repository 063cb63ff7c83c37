"""The operator's page in a real browser, before a gateway with simulated engines."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from playwright.async_api import async_playwright

from lab.sim import SimSettings, build_sim_app
from serve.access.principal import ANONYMOUS, Principal, Tenant
from serve.errors import InvalidApiKeyError
from serve.http1.listener import Listener
from support.admin_api import Ports, serving
from support.stack import listening

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")  # names of Debian's packages
BROWSER = os.environ.get("SPECGATE_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"needs a browser: one of {', '.join(BROWSERS)}, or SPECGATE_BROWSER"
)
POOL = "document.querySelector('[data-pool=\"m/speculative\"]')"
NARROW, WIDE = {"width": 360, "height": 800}, {"width": 1400, "height": 1000}
LIMITS = {"requests_per_minute": 600, "tokens_per_minute": 100_000, "concurrency": 20, "tokens_per_month": 50_000_000}
_KEYS = {
    "all": ANONYMOUS,
    "looks": Principal("viewer", Tenant("default"), frozenset({"observe", "explain"})),
    "asks": Principal("client", Tenant("default"), frozenset({"infer"})),
}


def by_key(headers: Mapping[str, str]) -> Principal:
    principal = _KEYS.get(headers.get("authorization", "").removeprefix("Bearer "))
    if principal is None:
        raise InvalidApiKeyError("This API key is not valid here.")
    return principal


class Tab:
    """A tab of the browser that may reach the admin API only, and everything that went wrong in it."""

    def __init__(self, page: Any, admin_api: str) -> None:
        self.page = page
        self.foreign: list[str] = []
        self.problems: list[str] = []
        self._admin_api = admin_api
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))

    async def open(self) -> None:
        await self.page.route("**/*", self._let_through)
        await self.page.goto(self._admin_api)

    async def _let_through(self, route: Any) -> None:
        if route.request.url.startswith((self._admin_api + "/", "data:")):
            await route.continue_()
        else:
            self.foreign.append(route.request.url)
            await route.abort()

    async def until(self, holds: str, timeout_s: float = 15.0) -> None:
        """Waits until an expression in JavaScript is true."""
        try:
            async with asyncio.timeout(timeout_s):
                # `wait_for_function` needs what the page's CSP forbids.
                while not await self.page.evaluate(holds):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never true: {holds}\n{await self.text()}\n{self.problems}") from None

    async def text(self) -> str:
        return str(await self.page.inner_text("body"))


@asynccontextmanager
async def tab(admin_api: str, size: dict[str, int] = WIDE, key: str = "", dark: bool = False) -> AsyncIterator[Tab]:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            page = await browser.new_page(viewport=size, color_scheme="dark" if dark else "light")
            if key:
                await page.add_init_script(f"sessionStorage.setItem('specgate-key', {json.dumps(key)})")
            opened = Tab(page, admin_api)
            await opened.open()
            yield opened
        finally:
            await browser.close()


@asynccontextmanager
async def gateway(content: bool = False, candidate: bool = False, **how: Any) -> AsyncIterator[tuple[Ports, Listener]]:
    """A gateway with two pools, and the listener of the speculative one, which a test may stop.

    Args:
        content: Texts of reruns are kept.
        candidate: Every request is copied to a third pool.
        how: As of `admin_before`.
    """
    fast = Listener("127.0.0.1")
    await fast.start(build_sim_app(SimSettings(model="m", num_speculative_tokens=3, faults={"wrong_name": 0.7})))
    async with listening(build_sim_app(SimSettings(model="m"))) as safe:
        pools = {
            "speculative": {"kind": "remote", "url": fast.url, "facts": {"engine": "sim", "method": "sim"}},
            "standard": {"kind": "remote", "url": safe.url, "facts": {"engine": "sim", "method": "none"}},
        }
        model: dict[str, Any] = {"family": "sim", "grammar": "kimi_k2", "pools": pools}
        if candidate:
            pools["candidate"] = pools["standard"]
            model["shadow"] = {"pool": "candidate", "share": 1.0}
        config = {
            "models": {"m": model},
            "rate_limits": {"enabled": True, "default": LIMITS},
            "admin": {"rerun_content": content},
        }
        async with serving(config, **how) as ports:
            try:
                yield ports, fast
            finally:
                await fast.stop()


async def ask_with_tools(url: str, name: str = "get_weather", stream: bool = False) -> int:
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [tool],
        "tool_choice": "required",
        "stream": stream,
    }
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.read()
        return response.status
