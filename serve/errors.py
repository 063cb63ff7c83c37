"""The errors that a client can see: one tree, translated to OpenAI's error shape once, at the boundary.

    GatewayError                 status  code                   retryable
      InvalidRequestError           400  invalid_request        no
      CustomToolsError              400  invalid_request        no
      InvalidApiKeyError            401  invalid_api_key        no
      InsufficientScopeError        403  insufficient_scope     no
      CrossSiteError                403  cross_site             no
      ModelNotFoundError            404  model_not_found        no
      RouteNotFoundError            404  not_found              no
      MethodNotAllowedError         405  method_not_allowed     no
      RequestTimeoutError           408  request_timeout        yes
      BodyTooLargeError             413  body_too_large         no
      HeadTooLargeError             431  head_too_large         no
      UnsupportedMediaTypeError     415  unsupported_media_type no
      PolicyConflictError           422  policy_conflict        no
      OverloadedError               429  overloaded             yes, after `retry_after_s`
      RateLimitError                429  rate_limit_exceeded    yes, after `retry_after_s`
      QuotaError                    429  insufficient_quota     no, not before `retry_after_s`
      EngineError                   502  engine_error           yes
      IntegrityError                502  integrity_violation    yes
      PoolUnavailableError          503  pool_unavailable       yes, after `retry_after_s`
      TooManyConnectionsError       503  too_many_connections   yes, after `retry_after_s`
      OutOfMemoryError              503  out_of_memory          yes, after `retry_after_s`
      ShuttingDownError             503  shutting_down          yes, after `retry_after_s`
      SharedStateError              503  shared_state_lost      yes, after `retry_after_s`
      DeadlineError                 504  deadline_exceeded      yes
      StorageError                  507  storage_failed         no: the disk has to be repaired first
    ConfigError                  raised at start-up only, never sent to a client

An error crosses a Ray handle pickled, which `Exception` does by its `args` and `__dict__`: so the message alone is an
argument of `Exception.__init__`, every other argument has a default, and what an error keeps can be pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar


def encode_json(value: Any) -> bytes:
    """Returns compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def retry_after(delay_s: float) -> str:
    """Returns the value of a `Retry-After` header, in whole seconds, never fewer; empty if nothing is to wait for."""
    return str(math.ceil(delay_s)) if delay_s else ""


INTERNAL = "Internal error; see the gateway's log."  # all that a client learns of a fault of ours


class GatewayError(Exception):
    """An error with an HTTP status and OpenAI's four error fields.

    Args:
        message: Says what went wrong and what the caller can do about it. Sent to the client.
        param: The request field at fault, if one is.
        code: A finer code than the class's own.
        retry_after_s: Seconds for the `Retry-After` header; 0 sends none.
        headers: Further response headers, by lower-case name.

    Attributes:
        key_id: Of the key that is refused, if it was one of ours; for the log, never for the client.
        tenant: Of that key.
    """

    key_id = ""
    tenant = ""
    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = 0.0,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        self._headers = dict(headers)

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that belong to the error, by lower-case name."""
        after = retry_after(self.retry_after_s)
        return {**self._headers, "retry-after": after} if after else dict(self._headers)

    def to_body(self) -> dict[str, Any]:
        """Returns OpenAI's error object; its specification requires all four keys."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def to_json(self) -> bytes:
        """Returns `to_body` as JSON."""
        return encode_json(self.to_body())


class InvalidRequestError(GatewayError):
    status, type, default_code = 400, "invalid_request_error", "invalid_request"


class CustomToolsError(InvalidRequestError):
    """A chat completion offers tools that take plain text, which engines don't know: it must be translated."""


class InvalidApiKeyError(GatewayError):
    status, type, default_code = 401, "invalid_request_error", "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        """With the challenge that RFC 9110 demands of every 401, and what keeps agents from trying again for ever."""
        return {**super().headers, "www-authenticate": "Bearer", "x-should-retry": "false"}


class InsufficientScopeError(GatewayError):
    status, type, default_code = 403, "permission_error", "insufficient_scope"


class CrossSiteError(GatewayError):
    status, type, default_code = 403, "invalid_request_error", "cross_site"


class ModelNotFoundError(GatewayError):
    status, type, default_code = 404, "invalid_request_error", "model_not_found"
    asked = ""  # the name, as far as operators may see it

    @classmethod
    def unknown(cls, model: str, known: Iterable[str]) -> ModelNotFoundError:
        """Returns the error for a model name that is not among the known ones."""
        names = ", ".join(sorted(known)) or "none"
        error = cls(f"The model {model[:100]!r} does not exist here. Known models: {names}.", param="model")
        error.asked = model[:100]
        return error


class RouteNotFoundError(GatewayError):
    status, type, default_code = 404, "invalid_request_error", "not_found"


class MethodNotAllowedError(GatewayError):
    status, type, default_code = 405, "invalid_request_error", "method_not_allowed"


class RequestTimeoutError(GatewayError):
    status, type, default_code = 408, "invalid_request_error", "request_timeout"


class BodyTooLargeError(GatewayError):
    status, type, default_code = 413, "invalid_request_error", "body_too_large"


class UnsupportedMediaTypeError(GatewayError):
    status, type, default_code = 415, "invalid_request_error", "unsupported_media_type"


class HeadTooLargeError(GatewayError):
    status, type, default_code = 431, "invalid_request_error", "head_too_large"


class PolicyConflictError(GatewayError):
    status, type, default_code = 422, "invalid_request_error", "policy_conflict"


class OverloadedError(GatewayError):
    status, type, default_code = 429, "rate_limit_error", "overloaded"


class RateLimitError(GatewayError):
    status, type, default_code = 429, "rate_limit_error", "rate_limit_exceeded"


class QuotaError(GatewayError):
    status, type, default_code = 429, "insufficient_quota", "insufficient_quota"

    @property
    def headers(self) -> dict[str, str]:
        """With the one that tells OpenAI's clients not to try again: a quota ends with the month."""
        return {**super().headers, "x-should-retry": "false"}


class EngineError(GatewayError):
    status, type, default_code = 502, "upstream_error", "engine_error"


class IntegrityError(GatewayError):
    status, type, default_code = 502, "upstream_error", "integrity_violation"


class PoolUnavailableError(GatewayError):
    status, type, default_code = 503, "upstream_error", "pool_unavailable"


class TooManyConnectionsError(GatewayError):
    status, type, default_code = 503, "rate_limit_error", "too_many_connections"


class OutOfMemoryError(GatewayError):
    status, default_code = 503, "out_of_memory"


class ShuttingDownError(GatewayError):
    status, default_code = 503, "shutting_down"


class SharedStateError(GatewayError):
    status, default_code = 503, "shared_state_lost"


class DeadlineError(GatewayError):
    status, type, default_code = 504, "upstream_error", "deadline_exceeded"


class StorageError(GatewayError):
    status, default_code = 507, "storage_failed"


class ConfigError(Exception):
    """A mistake in the operator's configuration; the message says what to change."""
