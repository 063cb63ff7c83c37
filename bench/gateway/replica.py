"""One gateway replica as a process of its own, with `remote` pools and without Ray around it."""

from __future__ import annotations

import argparse

import uvicorn
import uvloop

from serve.config import GatewayConfig
from serve.ingress import GatewayReplica


async def serve(config: GatewayConfig, port: int) -> None:
    """Answer on 127.0.0.1 until the process is told to end."""
    app = GatewayReplica(config.model_dump(mode="json"), []).__serve_build_asgi_app__()
    settings = uvicorn.Config(app, host="127.0.0.1", port=port, loop="none", log_level="warning", access_log=False)
    await uvicorn.Server(settings).serve()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--config", required=True)
    options.add_argument("--port", type=int, required=True)
    given = options.parse_args()
    uvloop.run(serve(GatewayConfig.load(given.config), given.port))


if __name__ == "__main__":
    main()
