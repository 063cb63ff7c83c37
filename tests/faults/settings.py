"""What the gateway of a fault is made of: each context makes what the fault needs, and removes it."""

import asyncio
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.stack import listening

from tests.faults.needs import FAKETIME
from tests.faults.scene import Scripted, Setting


@asynccontextmanager
async def usual(_: Path) -> AsyncIterator[Setting]:
    yield Setting()


@asynccontextmanager
async def impatient(_: Path) -> AsyncIterator[Setting]:
    yield Setting(config={"limits": {"stream_idle_timeout_s": 1, "request_timeout_s": 10}})


@asynccontextmanager
async def under_another_clock(folder: Path) -> AsyncIterator[Setting]:
    """Wall time comes from a file. The monotonic clock does not, for it never jumps."""
    offset = folder / "offset"
    offset.write_text("+0")
    environment = {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    limits = {"rate_limits": {"default": {"requests_per_minute": 100_000}}}
    yield Setting(keyed=True, environment=environment, config=limits)


@asynccontextmanager
async def on_a_small_disk(folder: Path) -> AsyncIterator[Setting]:
    disk = folder / "disk"
    disk.mkdir()
    await run("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk))
    try:
        yield Setting(keyed=True, config={"admin": {"audit_dir": str(disk)}})
    finally:
        await run("umount", "-l", str(disk))


@asynccontextmanager
async def with_certificates(folder: Path) -> AsyncIterator[Setting]:
    """The engine speaks TLS, and no connection is used twice: each has to believe the certificate."""
    authority = Authority(folder)
    engine = Scripted()
    engine.headers = {"connection": "close"}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.sign(context, timedelta(days=1))
    async with listening(engine.app) as behind, forwarding(behind.url, context) as port:
        authority.context = context
        certified = {"SSL_CERT_FILE": str(authority.file)}
        urls = {"standard": f"https://localhost:{port}"}
        yield Setting(urls=urls, environment=certified, more={"authority": authority})


class Authority:
    """Signs certificates of localhost.

    Attributes:
        file: Its own.
        context: Of the server that shows them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.file, self._key = folder, folder / "ca.pem", ec.generate_private_key(ec.SECP256R1())
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = self._certificate("faults", self._key, timedelta(days=2), authority=True)
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def sign(self, context: ssl.SSLContext, ends_in: timedelta) -> None:
        """Gives a server a certificate that ends then, or has ended."""
        context.load_cert_chain(self.issue(ends_in))

    def issue(self, ends_in: timedelta) -> Path:
        """Returns the file of the server's certificate and key, which it has written anew."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = self._folder / "server.pem"
        raw = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, *raw)
            + self._certificate("localhost", key, ends_in).public_bytes(serialization.Encoding.PEM)
        )
        return pem

    def _certificate(
        self, name: str, key: ec.EllipticCurvePrivateKey, ends_in: timedelta, *, authority: bool = False
    ) -> x509.Certificate:
        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder(named("faults"), named(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + ends_in)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


@asynccontextmanager
async def forwarding(url: str, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Takes TLS off what comes; yields the port."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(host, port)
        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class NameServer(asyncio.DatagramProtocol):
    """Says of every name that it is this machine.

    Attributes:
        silent: It says nothing any more.
    """

    def __init__(self) -> None:
        self.silent = False
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        if self.silent:
            return
        question = data[12 : data.index(b"\0", 12) + 5]
        is_a = question[-4:-2] == b"\0\x01"
        head = data[:2] + b"\x81\x80\0\x01" + (b"\0\x01" if is_a else b"\0\0") + b"\0\0\0\0"
        answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04" + socket.inet_aton("127.0.0.1") if is_a else b""
        self._transport.sendto(head + question + answer, address)


@asynccontextmanager
async def with_a_name_server(folder: Path) -> AsyncIterator[Setting]:
    """One pool has a name that is asked for over the network, another one that this machine knows itself."""
    loop = asyncio.get_running_loop()
    names = NameServer()
    transport, _ = await loop.create_datagram_endpoint(lambda: names, ("127.0.0.77", 53))
    engine = Scripted()
    engine.headers = {"connection": "close"}
    (folder / "resolv.conf").write_text("nameserver 127.0.0.77\n")
    mounted = f'mount --bind {folder}/resolv.conf /etc/resolv.conf && exec "$@"'
    async with listening(engine.app) as behind:
        port = behind.url.rpartition(":")[2]
        urls = {"far": f"http://engine.example.net:{port}", "near": f"http://localhost:{port}"}
        yield Setting(urls=urls, before=("unshare", "-m", "sh", "-c", mounted, "sh"), more={"names": names})
    transport.close()


@asynccontextmanager
async def with_a_far_store(folder: Path) -> AsyncIterator[Setting]:
    """The limits' store is a machine of its own, as far as the network goes."""
    name, ours, theirs = f"faults{os.getpid()}", f"fa{os.getpid()}", f"fb{os.getpid()}"
    store, command = None, ["redis-server", "--save", "", "--protected-mode", "no", "--bind", "10.203.77.2"]
    try:
        for line in (
            f"netns add {name}",
            f"link add {ours} type veth peer name {theirs} netns {name}",
            f"addr add 10.203.77.1/30 dev {ours}",
            f"link set {ours} up",
            f"-n {name} addr add 10.203.77.2/30 dev {theirs}",
            f"-n {name} link set {theirs} up",
        ):
            await run("ip", *line.split())
        store = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", name, *command, cwd=folder, stdout=asyncio.subprocess.DEVNULL
        )
        limits = {"default": {"requests_per_minute": 1_000_000}, "store": {"url": "redis://10.203.77.2", "clusters": 1}}
        cut = ("-n", name, "link", "set", theirs)
        yield Setting(keyed=True, config={"rate_limits": limits}, more={"link": cut})
    finally:
        if store is not None:
            store.kill()
            await store.wait()
        with suppress(subprocess.CalledProcessError):
            await run("ip", "netns", "del", name)  # and with it the link


async def run(*command: str) -> None:
    """Runs a program to its end."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=said)


@asynccontextmanager
async def behind_an_edge(folder: Path) -> AsyncIterator[Setting]:
    yield Setting(more={"authority": Authority(folder)})


@asynccontextmanager
async def behind_haproxy(_: Path) -> AsyncIterator[Setting]:
    yield Setting(pool={"max_ongoing_requests": 1000})
