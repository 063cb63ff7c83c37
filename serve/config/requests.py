"""The configuration of what a client's request may hold and what of it reaches an engine."""

from typing import Annotated

from pydantic import Field, field_validator

from serve.config.pool import _Strict

HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)]

# They frame the message, belong to one connection, or are set by the gateway itself.
_NEVER_PASSED = frozenset(
    {"authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host",
     "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-request-id"}
)  # fmt: skip


class RequestsConfig(_Strict):
    """What a request may hold, and what of it reaches an engine.

    Attributes:
        pass_headers: Names, in lower case, of further headers that engines and remote pools get from the client.
    """

    pass_headers: tuple[HeaderName, ...] = ()

    @field_validator("pass_headers")
    @classmethod
    def _may_be_passed(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in _NEVER_PASSED or name.startswith("x-specgate-"):
                raise ValueError(f"the header {name!r} is never passed on: the gateway sets or withholds it itself")
        return names
