"""A provider's keys as they are found and fetched: over TLS, where its discovery document says, and nowhere else."""

import asyncio
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm
from support.clock import LoopClock, until

from serve.access.key_file import KeyTerms
from serve.access.key_store import KeyStore
from serve.access.live import LiveAccess
from serve.access.oidc import fetch_provider_keys
from serve.config.access import AccessConfig, OidcConfig
from serve.errors import ConfigError, InvalidApiKeyError, SharedStateError
from serve.shared.link import LocalLink

DISCOVERY = "/.well-known/openid-configuration"
KEYS = {kid: ec.generate_private_key(ec.SECP256R1()) for kid in ("one", "two")}


class Provider(ThreadingHTTPServer):
    """An identity provider.

    Attributes:
        documents: What it serves, by path; a text is where it redirects to.
        asked: Paths that were asked for.
        drip: It sends what it serves byte by byte, without an end, until this is set; None if it does not.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(folder))
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.issuer = f"https://127.0.0.1:{self.server_address[1]}"
        self.documents: dict[str, Any] = {}
        self.asked: list[str] = []
        self.drip: threading.Event | None = None
        self.publish("one")

    def publish(self, kid: str) -> None:
        """Has one key, and says where."""
        key = {**ECAlgorithm.to_jwk(KEYS[kid].public_key(), as_dict=True), "kid": kid}
        self.documents["/keys"] = {"keys": [key]}
        self.documents[DISCOVERY] = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}

    def token(self, kid: str) -> str:
        """A token of a person."""
        claims = {"iss": self.issuer, "aud": "specgate", "sub": "anna", "tenant": "red"}
        ends = datetime.now(UTC) + timedelta(hours=1)
        return jwt.encode({**claims, "exp": ends}, KEYS[kid], "ES256", {"kid": kid})

    def handle_error(self, *_: Any) -> None:
        """Says nothing of clients that do not trust it."""


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        document = self.server.documents.get(self.path)
        self.send_response(404 if document is None else 302 if isinstance(document, str) else 200)
        if isinstance(document, str):
            self.send_header("location", document)
        self.end_headers()
        while self.server.drip is not None and not self.server.drip.wait(0.02):
            self.wfile.write(b" ")
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def certificate(folder: Path) -> Path:
    """A file with a key and a certificate for the loopback address, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    signed = built.add_extension(address, critical=False).sign(key, hashes.SHA256())
    path = folder / "provider.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + signed.public_bytes(Encoding.PEM))
    return path


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    with Provider(tmp_path) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "provider.pem"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def config(provider: Provider, **more: Any) -> OidcConfig:
    return OidcConfig.model_validate(
        {"issuer": provider.issuer, "audience": "specgate", "algorithms": ["ES256"], **more}
    )


def access(provider: Provider) -> LiveAccess:
    return LiveAccess(AccessConfig(mode="required", oidc=config(provider)), None)


def is_valid(access: LiveAccess, token: str) -> bool:
    try:
        return bool(named(access, token))
    except (InvalidApiKeyError, SharedStateError):
        return False


def named(access: LiveAccess, token: str) -> str:
    return access.ring.authenticate({"authorization": f"Bearer {token}"}).key_id


def test_the_discovery_document_says_where_the_keys_are(provider: Provider) -> None:
    assert list(fetch_provider_keys(config(provider))) == ["one"]
    assert provider.asked == [DISCOVERY, "/keys"]


def test_a_configured_place_needs_no_discovery(provider: Provider) -> None:
    assert list(fetch_provider_keys(config(provider, jwks_url=f"{provider.issuer}/keys"))) == ["one"]
    assert provider.asked == ["/keys"]


@pytest.mark.parametrize(
    ("discovery", "said"),
    [
        ({"issuer": "https://other.example", "jwks_uri": "https://other.example/keys"}, "other.example"),
        ({"jwks_uri": "https://other.example/keys"}, "None"),
        ({"issuer": "ISSUER", "jwks_uri": "http://127.0.0.1/keys"}, "jwks_uri"),
        ({"issuer": "ISSUER"}, "jwks_uri"),
        ([], "jwks_uri"),
        (None, "404"),
        ("/elsewhere", "302"),
    ],
)
def test_a_discovery_document_that_can_not_be_believed_leads_nowhere(
    provider: Provider, discovery: Any, said: str
) -> None:
    text = json.dumps(discovery).replace("ISSUER", provider.issuer)
    provider.documents = {"/elsewhere": provider.documents[DISCOVERY], DISCOVERY: json.loads(text)}
    with pytest.raises(ConfigError, match=said):
        fetch_provider_keys(config(provider))
    assert provider.asked == [DISCOVERY]


def test_a_provider_whose_certificate_nobody_signed_is_not_believed(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ConfigError, match="certificate"):
        fetch_provider_keys(config(provider))


@pytest.fixture
def dripping(provider: Provider) -> Iterator[Provider]:
    provider.drip = threading.Event()
    yield provider
    provider.drip.set()


def test_a_provider_whose_answer_drips_is_given_up_in_time(dripping: Provider) -> None:
    begun_s = time.monotonic()
    with pytest.raises(ConfigError, match="can't be fetched"):
        fetch_provider_keys(config(dripping), within_s=0.5)
    assert time.monotonic() - begun_s < 5
    assert dripping.asked == [DISCOVERY]


async def test_a_slow_provider_holds_up_no_revoked_key(dripping: Provider, tmp_path: Path) -> None:
    with closing(KeyStore(tmp_path)) as store:
        settings = AccessConfig(mode="required", state_dir=str(tmp_path), oidc=config(dripping))
        people = LiveAccess(settings, LocalLink(store))
        issued = store.create(KeyTerms(tenant="red"))
        running = asyncio.create_task(people.run())
        await until(lambda: dripping.asked)
        await until(lambda: is_valid(people, issued.token))
        store.revoke(issued.key.id)
        await until(lambda: not is_valid(people, issued.token))
        assert dripping.asked == [DISCOVERY], "its first answer has not ended yet"
        assert dripping.drip is not None
        dripping.drip.set()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.asyncio(loop_scope="function")
async def test_a_provider_that_is_away_at_the_start_is_asked_again_soon(clock: LoopClock, provider: Provider) -> None:
    documents, provider.documents = provider.documents, {}
    people = access(provider)
    await people.refresh()
    with pytest.raises(SharedStateError):
        named(people, provider.token("one"))
    provider.documents = documents
    await clock.advance(5)
    await people.refresh()
    assert named(people, provider.token("one")) == "oidc:anna"


@pytest.mark.asyncio(loop_scope="function")
async def test_a_new_key_is_fetched_and_the_old_ones_tokens_end(clock: LoopClock, provider: Provider) -> None:
    people = access(provider)
    await people.refresh()
    provider.publish("two")
    await people.refresh()
    assert named(people, provider.token("one")), "nobody has asked for another key, and the time is not up"
    with pytest.raises(InvalidApiKeyError):
        named(people, provider.token("two"))
    await clock.advance(30)
    await people.refresh()
    assert named(people, provider.token("two")) == "oidc:anna"
    with pytest.raises(InvalidApiKeyError):
        named(people, provider.token("one"))


@pytest.mark.asyncio(loop_scope="function")
async def test_known_keys_outlive_a_provider_that_is_away(clock: LoopClock, provider: Provider) -> None:
    people = access(provider)
    await people.refresh()
    provider.documents = {}
    await clock.advance(300)
    await people.refresh()
    assert named(people, provider.token("one")) == "oidc:anna"
