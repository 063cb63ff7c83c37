"""The store as a Valkey or Redis server: one script call for each scope, many of them in one round trip."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from hashlib import sha1
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from redis import CredentialProvider
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from serve.config.rate_limits import StoreConfig
from serve.config.secret import Secret
from serve.errors import ConfigError, SharedStateError
from serve.limits.messages import Meter
from serve.limits.store.messages import Advance, Answer, Message

SCRIPT = (Path(__file__).parent / "exchange.lua").read_text()
_TIMEOUT_S = 2.0
_BATCH = 64  # scopes in one round trip: more would keep replicas waiting that need something of the ledger at once
Found = TypeVar("Found")


class _Answer(msgspec.Struct):
    at: float
    spent: float
    answers: list[Advance]


_DECODER = msgspec.msgpack.Decoder(_Answer)


class RedisStore:
    """The server, as one ledger reaches it. It connects when it is first asked, and again whenever it must.

    Args:
        config: Where it is.
        script: What runs there.
    """

    def __init__(self, config: StoreConfig, script: str = SCRIPT) -> None:
        self._config = config
        self._script = script
        self._sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        trusted: dict[str, Any] = {} if config.ca_file is None else {"ssl_ca_certs": config.ca_file}
        # No retries of its own: a message that was not answered is sent again under its number.
        self._redis: Redis = Redis.from_url(
            config.address,
            credential_provider=None if config.password is None else _Credentials(config.user, config.password),
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            **trusted,
        )

    async def exchange(self, message: Message) -> Answer:
        """Takes a message; see `Store.exchange`."""
        scopes: dict[str, list[Meter]] = {scope: [] for scope in message.spent}
        for meter in message.entries:
            scopes.setdefault(meter.scope, []).append(meter)
        scopes = scopes or {"": []}  # the store should hear of this cluster even so
        names = list(scopes)
        answers: list[_Answer] = []
        while batch := names[len(answers) : len(answers) + _BATCH]:
            calls = [self._call(message, scope, scopes[scope]) for scope in batch]
            answers += [_DECODER.decode(each) for each in await self._asked(self._evaluate(calls))]
        advances: dict[Meter, Advance] = {}
        spent: dict[str, float] = {}
        for scope, answer in zip(names, answers, strict=True):
            advances |= zip(scopes[scope], answer.answers, strict=True)
            if scope in message.spent:
                spent[scope] = answer.spent
        return Answer(answers[0].at, advances, spent)

    async def describe(self) -> tuple[str, bool]:
        """Returns the server's name and version, and whether it forgets something when its memory is full.

        Raises:
            SharedStateError: It can't be reached.
        """
        found = await self._asked(self._redis.info("server", "memory"))
        name = f"{found.get('server_name', 'redis')} {found.get('valkey_version', found.get('redis_version'))}"
        policy = found.get("maxmemory_policy", "noeviction")
        return name, bool(found.get("maxmemory")) and policy != "noeviction"

    async def close(self) -> None:
        await self._redis.aclose()

    def _call(self, message: Message, scope: str, meters: Sequence[Meter]) -> tuple[list[str], bytes]:
        """Returns keys and argument of one call. In a cluster of servers, all keys with one tag are on one of them."""
        prefix = f"{{{self._config.prefix}}}"
        spent = message.spent.get(scope)
        keys = [f"{prefix}:store", *(f"{prefix}:{meter.kind}:{scope}" for meter in meters)]
        if spent is not None:
            keys.append(f"{prefix}:spent:{spent.month}:{scope}")
        argument = {
            "member": message.member,
            "number": message.number,
            "clusters": self._config.clusters,
            "entries": [asdict(message.entries[meter]) for meter in meters],
            "spent": None if spent is None else spent._asdict(),
        }
        return keys, msgspec.msgpack.encode(argument)

    async def _evaluate(self, calls: Sequence[tuple[list[str], bytes]]) -> list[bytes]:
        try:
            return await self._evaluated(calls)
        except NoScriptError:  # a server that has just begun; a call that was answered is answered alike
            await self._redis.script_load(self._script)
            return await self._evaluated(calls)

    async def _evaluated(self, calls: Sequence[tuple[list[str], bytes]]) -> list[bytes]:
        pipeline = self._redis.pipeline(transaction=False)
        for keys, argument in calls:
            pipeline.evalsha(self._sha, len(keys), *keys, argument)
        return await pipeline.execute()

    async def _asked(self, answer: Awaitable[Found]) -> Found:
        """Returns an answer of the server's; its errors name the server and never a password."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except (RedisError, OSError, ConfigError) as error:
            place = urlsplit(self._config.address).netloc
            text = " ".join(str(error).split()) or type(error).__name__
            raise SharedStateError(
                f"The store of limits at {place} can't be used: {text}", None, None, 1.0
            ) from None  # fmt: skip


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
