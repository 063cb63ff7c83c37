"""The store from which the ledgers of several clusters take: a Valkey or Redis server, where a script is the bucket."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from redis import CredentialProvider
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from serve.config.rate_limits import StoreConfig
from serve.config.secret import Secret
from serve.errors import ConfigError, SharedStateError
from serve.limits.bucket import start_of
from serve.limits.ledger_messages import Grant, Grants, Holding, LimitId, Statement
from serve.shared.report import Report

SCRIPT = (Path(__file__).parent / "store.lua").read_text()
_TIMEOUT_S = 2.0
_BATCH = 64  # limits in one call of the script, which holds up the calls of others
_MONTH_S = 40 * 86400
_MOST_TOLD, _TOLD_S = 64, 60  # messages that are kept, of up to 130 KB; six gateways send as many in ten seconds
Found = TypeVar("Found")

_decode = msgspec.msgpack.Decoder(list[tuple[float, float, float]]).decode


class RedisStore:
    """The server, as one ledger reaches it. It connects when it is first asked, and again whenever it must."""

    def __init__(self, config: StoreConfig, book: str = "", script: str = SCRIPT) -> None:
        self.clusters = config.clusters
        self._config = config
        self._book = book
        self._last_id: bytes | str = "0"
        self._script = script
        self._sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._redis = _client(config)

    def book(self, report: Report[Statement, Grants]) -> None:
        """Does nothing: the script books what it gives for, in one step."""

    async def exchange(self, report: Report[Statement, Grants], parts: Mapping[LimitId, int]) -> dict[LimitId, Grant]:
        """Books a report and gives what it needs, once for each number.

        Raises:
            SharedStateError: The store can't be reached, or not all of it was answered.
        """
        ids = tuple(report.content.holdings)
        batches = range(0, len(ids), _BATCH)
        calls = [self._call(report, str(first), ids[first : first + _BATCH], parts) for first in batches]
        answers = await self._asked(self._evaluate(calls)) if calls else []
        found = [answer for each in answers for answer in _decode(each)]
        return {id: Grant(*answer) for id, answer in zip(ids, found, strict=True)}

    async def spending(self, own: Mapping[str, float], month: str) -> dict[str, float]:
        """Returns what all clusters have spent in a month. Each says what its own book has, which only grows.

        Raises:
            SharedStateError: The store can't be reached.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for scope, cost in own.items():
            key = self._key(f"spent:{month}", scope)
            pipeline.hset(key, self._book, repr(cost))
            pipeline.expire(key, _MONTH_S)
            pipeline.hvals(key)
        answers = await self._asked(_answers(pipeline))
        return {scope: sum(map(float, costs)) for scope, costs in zip(own, answers[2::3], strict=True)}

    async def tell(self, sender: str, message: bytes) -> list[bytes]:
        """Leaves a message to all with the same prefix, unless it is empty; returns theirs since the last call.

        Raises:
            SharedStateError: The store can't be reached. What is told again comes twice.
        """
        key = self._key("told", "prompts-v2")  # of the messages: an older gateway would not read them
        pipeline = self._redis.pipeline(transaction=False)
        if message:
            pipeline.xadd(key, {"from": sender, "message": message}, maxlen=_MOST_TOLD, approximate=False)
            pipeline.expire(key, _TOLD_S)
        pipeline.xread({key: self._last_id})
        told = [each for _, each in (await self._asked(_answers(pipeline)))[-1] or ()]
        entries = told[0] if told else []
        if entries:
            self._last_id = entries[-1][0]
        return [fields[b"message"] for _, fields in entries if fields[b"from"] != sender.encode()]

    async def describe(self) -> tuple[str, bool]:
        """Returns the server's name and version, and whether it forgets something when its memory is full.

        Raises:
            SharedStateError: It can't be reached, or runs no script that writes: a replica answers all the same.
        """
        nothing = msgspec.msgpack.encode({"replica": "", "number": time.time(), "entries": []})
        await self._asked(self._evaluate([([self._key("replica", "doctor")], nothing)]))
        found = await self._asked(self._info())
        version = found.get("valkey_version", found.get("redis_version", "of an unknown version"))
        name = f"{found.get('server_name', 'redis')} {version}"
        policy = found.get("maxmemory_policy", "noeviction")
        return name, bool(found.get("maxmemory")) and policy != "noeviction"

    async def _info(self) -> dict[str, Any]:
        try:
            return dict(await self._redis.info("server", "memory"))
        except ResponseError:  # nothing but `describe` needs it, and proxies have none
            return {}

    async def close(self) -> None:
        await self._redis.aclose()

    def _key(self, kind: str, name: str) -> str:
        """Returns a key; in a cluster of servers, all keys with one tag are on one of them."""
        return f"{{{self._config.prefix}}}:{kind}:{name}"

    def _call(
        self, report: Report[Statement, Grants], batch: str, ids: tuple[LimitId, ...], parts: Mapping[LimitId, int]
    ) -> tuple[list[str], bytes]:
        """Returns keys and argument of one call of the script."""
        keys = [self._key("replica", f"{report.replica}:{batch}")]
        entries = []
        for id in ids:
            keys.append(self._key(id.kind, id.scope))
            entries.append(self._entry(report.content.holdings[id], parts.get(id, 1), report.age_s))
        argument = {"replica": report.replica, "number": report.number, "entries": entries}
        return keys, msgspec.msgpack.encode(argument)

    def _entry(self, holding: Holding, parts: int, age_s: float | None) -> dict[str, float]:
        start = start_of(holding, age_s)
        return {
            "rate": holding.terms.rate_per_s,
            "capacity": holding.terms.capacity,
            "held": holding.held,
            "drawn": holding.drawn,
            "returned": holding.returned,
            "needed": holding.needed,
            "wanted": holding.wanted,
            "parts": float(max(1, parts) * self.clusters),
            "start": holding.terms.capacity if start is None else start,
        }

    async def _evaluate(self, calls: list[tuple[list[str], bytes]]) -> list[bytes]:
        try:
            return await self._evaluated(calls)
        except NoScriptError:  # a server that has just begun; a call that was answered is answered alike
            try:
                await self._redis.script_load(self._script)
            except ResponseError:  # proxies have no SCRIPT, since it has no key; EVAL brings the script as well
                return await self._evaluated(calls, whole=True)
            return await self._evaluated(calls)

    async def _evaluated(self, calls: list[tuple[list[str], bytes]], *, whole: bool = False) -> list[bytes]:
        pipeline = self._redis.pipeline(transaction=False)
        for keys, argument in calls:
            if whole:
                pipeline.eval(self._script, len(keys), *keys, argument)
            else:
                pipeline.evalsha(self._sha, len(keys), *keys, argument)
        return await _answers(pipeline)

    async def _asked(self, answer: Awaitable[Found]) -> Found:
        """Returns an answer of the server's; its errors name the server and never a password."""
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except (RedisError, OSError, ConfigError) as error:
            # After a failover, the name may lead elsewhere; who was the primary goes on to answer, and refuses. And a
            # client never reads changed certificates.
            await self._redis.aclose()
            self._redis = _client(self._config)
            place = urlsplit(self._config.address).netloc
            said = str(error).partition(", with args beginning with")[0]  # which would be a part of the script
            text = " ".join(said.split()) or type(error).__name__
            if isinstance(error, MovedError):
                text = f"it is a node of a cluster, whose keys of ours are at {error.host}:{error.port}; name that one"
            raise SharedStateError(
                f"The store of limits at {place} can't be used: {text}", retry_after_s=1.0
            ) from None  # fmt: skip
        finally:
            if task.cancelling() > cancellations:  # redis-py writes in `asyncio.wait_for`, which in 3.11 swallows one
                raise asyncio.CancelledError


def _client(config: StoreConfig) -> Redis:
    trusted: dict[str, Any] = {} if config.ca_file is None else {"ssl_ca_certs": config.ca_file}
    # No retries of its own: a report that was not answered is sent again under its number.
    return Redis.from_url(
        config.address,
        credential_provider=None if config.password is None else _Credentials(config.user, config.password),
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **trusted,
    )


async def _answers(pipeline: Pipeline) -> list[Any]:
    answers = await pipeline.execute(raise_on_error=False)  # which would put the command in front of the error
    for each in answers:
        if isinstance(each, Exception):
            raise each
    return answers


class _Credentials(CredentialProvider):
    """Reads the password for each connection, so that it can change."""

    def __init__(self, user: str | None, password: Secret) -> None:
        self._user = user
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password.read()
        return (password,) if self._user is None else (self._user, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()
