"""The configuration of what web pages may do."""

from typing import Annotated

from pydantic import Field

from serve.config.pool import _Strict

Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+)$", max_length=253)]


class HttpConfig(_Strict):
    """The rights of web pages.

    Attributes:
        cors_origins: Sites whose pages may use the inference routes, as `https://app.example.com`, or `*` for all. No
            page of another site ever reaches an operator's route.
    """

    cors_origins: tuple[Origin, ...] = ()
