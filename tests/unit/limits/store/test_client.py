"""How the store is reached: passwords, rights, TLS, and what errors say."""

import asyncio
import logging
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.limits_store import StoreServer, needs_server

from serve.config.rate_limits import StoreConfig
from serve.errors import SharedStateError
from serve.limits.ledger_messages import Holding, LimitId, LimitTerms, Statement
from serve.limits.store import RedisStore
from serve.shared.report import Report

pytestmark = needs_server
CANARY = "canary-7f3a9"
TOKENS = LimitId("tenant:a", "tokens")
TERMS = LimitTerms(1.0, 30.0)
NOVEMBER = "2026-11"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
RIGHTS = "+evalsha +script|load +info +get +set +hset +hdel +hmget +hgetall +hvals +expire +time +xadd +xread"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "right").write_text(f"{CANARY}\n")
    (tmp_path / "wrong").write_text(f"{CANARY}-wrong\n")
    return tmp_path


async def works(store: RedisStore) -> bool:
    """Uses all that a ledger does."""
    await store.exchange(Report("r", 1, Statement({TOKENS: Holding(TERMS)})), {})
    seats = LimitId("tenant:a", "concurrency")
    await store.exchange(Report("r", 2, Statement({seats: Holding(LimitTerms(0.0, 3.0))})), {})
    assert await store.tell("r", b"told") == []
    return await store.spending({"tenant:a": 1.0}, NOVEMBER) == {"tenant:a": 1.0}


async def refusal(config: StoreConfig) -> str:
    store = RedisStore(config)
    with pytest.raises(SharedStateError) as refused:
        await works(store)
    await store.close()
    return f"{refused.value} {refused.value!r} {refused.value.__cause__!r}"


async def test_a_password_is_needed_and_never_shown(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = StoreServer(folder, "--requirepass", CANARY)
    right = replace(server.config, password_file=str(folder / "right"))
    try:
        await server.start(right)
        for wrong in (
            server.config,
            replace(right, user="nobody"),
            replace(right, password_file=str(folder / "wrong")),
            replace(right, password_file=str(folder / "missing")),
            replace(server.config, password_env="NO_SUCH_VARIABLE"),
        ):
            said = await refusal(wrong)
            assert f"127.0.0.1:{server.port} can't be used: " in said
            assert CANARY not in said
    finally:
        server.stop()
    assert CANARY not in caplog.text
    assert CANARY not in repr(right)


async def test_a_password_that_changes_needs_no_restart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", CANARY)
    server = StoreServer(folder, "--requirepass", CANARY)
    try:
        await server.start(replace(server.config, password_env="STORE_PASSWORD"))
        store = RedisStore(replace(server.config, password_file=str(folder / "wrong")))
        with pytest.raises(SharedStateError):
            await works(store)
        (folder / "wrong").write_text(CANARY)
        assert await works(store)
        await store.close()
    finally:
        server.stop()


async def test_a_user_needs_no_more_rights_than_the_guide_says(folder: Path) -> None:
    server = StoreServer(folder, "--user", "specgate", "on", f">{CANARY}", "~{specgate}:*", *RIGHTS.split())
    config = replace(server.config, user="specgate", password_file=str(folder / "right"))
    try:
        await server.start()
        store = RedisStore(config)
        assert await works(store)
        assert await store.describe()
        await store.close()
        assert "permission" in await refusal(replace(config, prefix="other"))
    finally:
        server.stop()


@pytest.mark.parametrize("blocked", ["SCRIPT", "INFO"])
async def test_a_proxy_without_commands_that_have_no_key_will_do(tmp_path: Path, blocked: str) -> None:
    server = StoreServer(tmp_path, "--rename-command", blocked, "")
    try:
        await server.start()
        store = RedisStore(server.config)
        assert await works(store)
        assert await store.describe()
        await store.close()
    finally:
        server.stop()


async def test_a_name_that_leads_to_another_primary_is_followed(tmp_path: Path) -> None:
    """As after a failover: the connection lasts, to a server that is a replica now."""
    old, new = [StoreServer(folder) for folder in (tmp_path / "old", tmp_path / "new")]
    leads_to = old

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", leads_to.port)
        await asyncio.gather(copy(reader, its_writer), copy(its_reader, writer))

    name = await asyncio.start_server(connect, "127.0.0.1", 0)
    store = RedisStore(StoreConfig(url=f"redis://127.0.0.1:{name.sockets[0].getsockname()[1]}"))
    try:
        for server in (old, new):
            server.folder.mkdir()
            await server.start()
        assert await works(store)
        leads_to = new
        await old.command("REPLICAOF", "127.0.0.1", new.port)
        with pytest.raises(SharedStateError, match=r"can't be used: .*read only replica"):
            await store.describe()
        assert await works(store)
    finally:
        await store.close()
        name.close()
        old.stop()
        new.stop()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (b"MOVED 2869 10.0.0.9:6379", "a node of a cluster, whose keys of ours are at 10.0.0.9:6379"),
        (b"ERR unknown command 'EVALSHA', with args beginning with: 'abc' '1'", "unknown command 'EVALSHA'"),
    ],
)
async def test_what_a_server_refuses_is_told_in_a_few_words(error: bytes, says: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"-%b\r\n" % error)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as node:
        said = await refusal(StoreConfig(url=f"redis://127.0.0.1:{node.sockets[0].getsockname()[1]}"))
    assert says in said
    assert "with args" not in said


def make_certificate(folder: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run([*made, *files], check=True, capture_output=True)


def with_tls(folder: Path) -> tuple[StoreServer, StoreConfig]:
    server = StoreServer(folder)
    tls = ("--tls-cert-file", f"{folder}/cert.pem", "--tls-key-file", f"{folder}/key.pem", "--tls-auth-clients", "no")
    server.options += ["--port", "0", "--tls-port", str(server.port), *tls]
    return server, StoreConfig(url=f"rediss://127.0.0.1:{server.port}", ca_file=f"{folder}/cert.pem")


@needs_openssl
async def test_a_certificate_that_was_replaced_is_taken_without_a_restart(folder: Path) -> None:
    make_certificate(folder)
    server, trusting = with_tls(folder)
    store = RedisStore(trusting)
    try:
        await server.start(trusting)
        assert await works(store)
        server.stop()
        make_certificate(folder)
        await server.start(trusting)
        with pytest.raises(SharedStateError):  # the connection of before
            await works(store)
        assert await works(store)
    finally:
        await store.close()
        server.stop()


@needs_openssl
async def test_tls_is_checked(folder: Path) -> None:
    make_certificate(folder)
    server, trusting = with_tls(folder)
    try:
        await server.start(trusting)
        store = RedisStore(trusting)
        assert await works(store)
        await store.close()
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(replace(trusting, ca_file=None))
        assert "No such file" in await refusal(replace(trusting, ca_file=f"{folder}/missing.pem"))
    finally:
        server.stop()


async def test_a_report_about_many_limits_is_answered_whole(folder: Path) -> None:
    meters = [LimitId(f"tenant:{number}", kind) for number in range(150) for kind in ("tokens", "requests")]
    holdings = {meter: Holding(LimitTerms(1.0, float(place + 1))) for place, meter in enumerate(meters)}
    server = StoreServer(folder)
    try:
        await server.start()
        store = RedisStore(server.config)
        grants = await store.exchange(Report("r", 1, Statement(holdings)), {})
        await store.close()
    finally:
        server.stop()
    assert {meter: grant.level for meter, grant in grants.items()} == {
        meter: holding.terms.capacity for meter, holding in holdings.items()
    }


async def test_a_task_that_is_cancelled_while_the_store_is_asked_ends(tmp_path: Path) -> None:
    async def keep_asking(store: RedisStore) -> None:
        while True:
            await store.spending({"tenant:a": 1.0}, NOVEMBER)
            await asyncio.sleep(30)

    server = StoreServer(tmp_path)
    await server.start()
    store = RedisStore(server.config)
    try:
        for turns in range(40):  # of the event loop, before it is cancelled; the answer takes some ten
            await store.describe()
            task = asyncio.create_task(keep_asking(store))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task}, timeout=10)
            assert task.cancelled(), turns
    finally:
        await store.close()
        server.stop()
