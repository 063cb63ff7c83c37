"""The configuration of the admin API."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from serve.config.pool import _Strict

DEFAULT_PORT = 8001


class AdminConfig(_Strict):
    """The admin API: a port of its own for all that is not inference.

    Attributes:
        host: Address to listen on: loopback, or the head node's private one.
        port: On the head node.
        tls_certfile: PEM file of the certificate; without one, plain HTTP.
        tls_keyfile: PEM file of its key.
        names: Host names it serves beside addresses, `localhost` and `host`. Without access control it refuses others,
            which protects it from DNS rebinding.
        audit_dir: Folder of the audit log, on the head node; without one, lines are only kept in memory.
        audit_key_file: Key that seals the audit log, outside of `audit_dir`, made if missing. By default `audit.key` in
            `access.state_dir`; without either, lines have no seal.
        rerun_content: Keep what engines sent for the last 50 rerun requests of each gateway replica, for keys with the
            scope `content`. Each access is audited.
    """

    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = DEFAULT_PORT
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$", max_length=253)], ...] = ()
    audit_dir: str | None = None
    audit_key_file: str | None = None
    rerun_content: bool = False

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            raise ValueError("tls_certfile and tls_keyfile go together")
        return self

    @model_validator(mode="after")
    def _key_is_elsewhere(self) -> Self:
        if self.audit_key_file is not None:
            if self.audit_dir is None:
                raise ValueError("audit_key_file seals the log in audit_dir, which is not set")
            if Path(self.audit_key_file).is_relative_to(self.audit_dir):
                raise ValueError("audit_key_file is in audit_dir: whoever can write there could seal lines of his own")
        return self

    def audit_key(self, state_dir: str | None) -> Path | None:
        """Returns the file of the key that seals the audit log; None without a seal."""
        if self.audit_key_file is not None:
            return Path(self.audit_key_file)
        if self.audit_dir is None or state_dir is None:
            return None
        path = Path(state_dir) / "audit.key"
        return None if path.is_relative_to(self.audit_dir) else path

    @property
    def url(self) -> str:
        """The admin API's base URL, as somebody on the same machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "http" if self.tls_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
