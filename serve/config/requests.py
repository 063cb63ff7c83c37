"""The configuration of what a client's request may hold and what of it reaches an engine."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from serve.config.pool import Count, _Strict

HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)]
FieldName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=128)]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]

# They frame the message, belong to one connection, or are set by the gateway itself.
_NEVER_PASSED = frozenset(
    {"authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host",
     "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-request-id"}
)  # fmt: skip


class RequestsConfig(_Strict):
    """Rules for what a request may hold, and for what of it reaches an engine.

    Attributes:
        mode: Unknown fields of a body: `open` passes them byte for byte, `strict` refuses them.
        pass_headers: Further headers of the client, in lower case, that engines get.
        pass_fields: Fields that engines get although the gateway would refuse or strip them, or does not know them.
        media_hosts: Hosts from which engines may fetch images, video and audio; `data:` URLs are always allowed.
        max_n: Choices of one request.
        max_prompts: Prompts of one text completion.
        max_top_logprobs: Alternatives for each token.
        max_logit_bias: Tokens with a bias.
    """

    mode: Literal["open", "strict"] = "open"
    pass_headers: tuple[HeaderName, ...] = ()
    pass_fields: tuple[FieldName, ...] = ()
    media_hosts: tuple[HostName, ...] = ()
    max_n: Count = 4
    max_prompts: Annotated[int, Field(ge=1, le=10_000)] = 16
    max_top_logprobs: Count = 20
    max_logit_bias: Count = 300

    @field_validator("pass_headers")
    @classmethod
    def _may_be_passed(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in _NEVER_PASSED or name.startswith("x-specgate-"):
                raise ValueError(f"the header {name!r} is never passed on: the gateway sets or withholds it itself")
        return names
