"""What access control costs a request: the look-up of a key, and refusals at the socket whose bodies stay unread.

`python -m bench.access` prints microseconds of CPU. A refusal at the socket includes the client, as the empty answer
beside it does.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serve.access.key_file import KeyTerms
from serve.access.key_ring import KeyRing
from serve.access.key_store import KeyStore
from serve.access.key_text import new_id, new_token
from serve.access.principal import everybody
from serve.errors import InvalidApiKeyError
from serve.gateway.ingress import GatewayReplica
from serve.http1.listener import Listener
from serve.http1.server import protocol_factory

_KEYS = 10_000
_CALLS = 100_000
_REQUESTS = 3_000
_ROUNDS = 5
_MICROSECONDS = 1e6


def main() -> None:
    """Prints every figure."""
    with tempfile.TemporaryDirectory() as folder:
        for name, value in {**lookups(), **asyncio.run(refusals(Path(folder)))}.items():
            print(f"{name:58} {value:8.2f} us")


def lookups() -> Mapping[str, float]:
    """Returns microseconds of one decision, by what is decided, with as many keys as a large company has."""
    store, ring = KeyStore(None), KeyRing(stale_max_s=1e9)
    token = [store.create(KeyTerms(tenant=f"t{number % 50}")).token for number in range(_KEYS)][_KEYS // 2]
    ring.adopt(store.changes_since(0))
    store.close()
    known = {"authorization": f"Bearer {token}"}
    unknown = {"authorization": f"Bearer {new_token(new_id())}"}
    wrong = {"authorization": f"Bearer {token[:-1]}-"}

    def refused(headers: Mapping[str, str]) -> Callable[[], object]:
        def decide() -> None:
            try:
                ring.authenticate(headers)
            except InvalidApiKeyError:
                return

        return decide

    return {
        "decision with access control off": _time(lambda: everybody(known)),
        f"decision, a valid key of {_KEYS:,}": _time(lambda: ring.authenticate(known)),
        "decision, an unknown key": _time(refused(unknown)),
        "decision, a known id with a wrong secret": _time(refused(wrong)),
    }


async def refusals(folder: Path) -> Mapping[str, float]:
    """Returns microseconds of a refusal at the socket, client included, and of an empty answer without a gateway."""
    pool = {"kind": "remote", "url": "http://127.0.0.1:9", "facts": {"method": "none"}}
    models = {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}
    access = {"mode": "required", "state_dir": str(folder)}
    replica = GatewayReplica({"models": models, "access": access}, [])
    await replica.access.refresh()
    listener = Listener("127.0.0.1")
    await listener.start(_nothing, protocol_factory({**replica.hot, "/floor": _nothing}))
    try:
        bad = f"authorization: Bearer {new_token(new_id())}\r\n"
        floor = await _ask(listener.port, "/floor", "", b"{}")
        refused = await _ask(listener.port, "/v1/chat/completions", bad, b"{}")
        return {"an empty answer at the socket": floor, "a refused key at the socket": refused}
    finally:
        await listener.stop()


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": message["type"] + ".complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _ask(port: int, path: str, header: str, body: bytes) -> float:
    """Returns the median of some rounds; every twentieth request needs a new connection, as guessing does."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{header}"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    rounds = []
    for _ in range(_ROUNDS):
        spent_s, asked = 0.0, 0
        while asked < _REQUESTS:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(20):
                began_s = time.process_time()
                writer.write(request)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if length:
                    await reader.readexactly(length)
                spent_s += time.process_time() - began_s
                asked += 1
            writer.close()
        rounds.append(spent_s / asked * _MICROSECONDS)
    return statistics.median(rounds)


def _time(call: Callable[[], object]) -> float:
    rounds = []
    for _ in range(_ROUNDS):
        began_s = time.process_time()
        for _ in range(_CALLS):
            call()
        rounds.append((time.process_time() - began_s) / _CALLS * _MICROSECONDS)
    return min(rounds)


if __name__ == "__main__":
    main()
