"""Takes the pictures of the page in docs/images: `make screenshots`."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
from support.page import BROWSER, BROWSERS, NARROW, POOL, WIDE, ask_with_tools, gateway, tab

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MEDIUM = {"width": 1024, "height": 800}
PICTURES = [("page-wide", WIDE, False), ("page-dark", MEDIUM, True), ("page-narrow", NARROW, False)]


async def ask_for(model: str, url: str) -> None:
    """Asks for a model that is not there."""
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.read()


async def main() -> None:
    """Takes them of a gateway that has been busy for a while."""
    async with gateway(content=True) as (ports, _):
        async with tab(ports.admin_api) as opened:  # while somebody looks, the admin API looks too
            await opened.until(f"{POOL} !== null")
            for _ in range(14):
                await asyncio.gather(*(ask_with_tools(ports.data, stream=number % 2 == 0) for number in range(6)))
                await ask_for("claude-sonnet-4-5", ports.data)
                await asyncio.sleep(1)
        for name, size, dark in PICTURES:
            async with tab(ports.admin_api, size, dark=dark) as opened:
                await opened.until("document.querySelector('[data-read]') !== null")
                await asyncio.sleep(0.5)  # the charts
                await opened.page.screenshot(path=FOLDER / f"{name}.png", full_page=True)


if __name__ == "__main__":
    if BROWSER is None:
        sys.exit(f"a browser takes the pictures: one of {', '.join(BROWSERS)}, or SPECGATE_BROWSER says where it is")
    asyncio.run(main())
