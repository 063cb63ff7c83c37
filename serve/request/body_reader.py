"""A body, parsed, under the model's own name, with its features and what must change in it."""

from collections.abc import Callable, Container, Mapping

import msgspec
from msgspec import UNSET, Struct

from policies import RequestFeatures
from serve.config.gateway import GatewayConfig, RequestsConfig
from serve.config.model_names import ModelNames
from serve.errors import InvalidRequestError
from serve.request.client_json import LARGE_BYTES, check_density, mend
from serve.request.completion import (
    ANY_FIELDS,
    MALFORMED,
    PREFERENCE_FIELD,
    UNKNOWN_FIELD,
    CompletionRequest,
    holds,
    not_json,
    parse,
    strict_decoder,
)
from serve.request.features import FeatureReader
from serve.request.field_rules import FieldRules, check_schemas, constrains
from serve.request.patch import BodyPatch

# Fields whose null means "not given": not every engine reads it so, and vLLM loses calls to `tool_choice: null`.
_NULL_IS_ABSENT = frozenset(
    {"tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "reasoning_effort",
     "chat_template_kwargs", "stream", "stream_options", "stop", "n", "logprobs", "top_logprobs", "logit_bias"}
)  # fmt: skip
NO_SPECULATION = ":nospec"  # the suffix of a model's name that forbids it


class RequestReader:
    """Reads bodies under the rules of one configuration."""

    def __init__(self, config: RequestsConfig) -> None:
        self._rules = FieldRules(config)
        self._is_open = config.mode == "open"
        self._decoder = strict_decoder(config.pass_fields)  # in mode `open` it tells of unknown fields

    def read(self, body: bytes) -> tuple[bytes, CompletionRequest, BodyPatch]:
        """Returns a body as JSON, the request that it holds, and the patch without which it must not reach an engine.

        A body that is JSON already comes back as the very same bytes.

        Raises:
            InvalidRequestError: The body is not the JSON of a chat or text completion, or a field is not allowed.
        """
        if len(body) > LARGE_BYTES:
            check_density(body)
        try:
            request, has_unknown = self._parsed(body)
        except InvalidRequestError:
            mended = mend(body)
            if mended is body:
                raise
            body = mended
            request, has_unknown = self._parsed(body)
        try:
            dropped = {*self._rules.apply(request), *(self._rules.lookalikes(body) if has_unknown else ())}
            if "vllm_xargs" in dropped:
                request.vllm_xargs = UNSET
            if request.enable_speculative is not UNSET:
                dropped.add(PREFERENCE_FIELD)
            patch = BodyPatch()
            patch.drop(dropped, _NULL_IS_ABSENT if holds(body, b"null") else ())
            return body, request, patch
        except MALFORMED as error:  # in a part that the first reading skipped
            raise not_json(error) from error

    def _parsed(self, body: bytes) -> tuple[CompletionRequest, bool]:
        """Returns the request that a body holds, and whether it has fields that nobody knows."""
        try:
            return parse(body, self._decoder), False
        except InvalidRequestError as error:
            if not self._is_open or error.code != UNKNOWN_FIELD:
                raise
        return parse(body, ANY_FIELDS), True


class ReadRequest(Struct, frozen=True):
    """A request as far as its body tells.

    Attributes:
        body: JSON, as the client sent it.
        patch: What must change in the body before an engine gets it, whichever it is.
    """

    body: bytes
    parsed: CompletionRequest
    features: RequestFeatures
    patch: BodyPatch


class BodyReader:
    """Reads bodies of chat and text completions, for the models of one configuration and under its rules."""

    def __init__(self, config: GatewayConfig) -> None:
        self._limits = config.limits
        self._requests = RequestReader(config.requests)
        self._features = FeatureReader(config)

    def read(self, body: bytes, headers: Mapping[str, str], may_use: Callable[[str], bool]) -> ReadRequest:
        """Returns what a body holds.

        `may_use` is False for a model, given its own name, that does not exist for this caller.

        Raises:
            GatewayError: The request is wrong.
        """
        body, parsed, patch = self._requests.read(body)
        if constrains(parsed):
            check_schemas(parsed, self._limits)
        if parsed.model.endswith(NO_SPECULATION):
            take_suffix(patch, parsed, self._features.names)
        if parsed.model not in self._features.names.exact:
            put_own_name(patch, parsed, self._features.names)
        features = self._features.read(parsed, headers, may_use, size_bytes=len(body))
        self._features.set_switch(patch, parsed)
        return ReadRequest(body, parsed, features, patch)


def put_own_name(patch: BodyPatch, request: CompletionRequest, names: ModelNames) -> None:
    """Puts the model's own name in place of one that matches a pattern, since engines know no patterns.

    The request is changed as its body is.
    """
    own_name = names.own_name(request.model)
    if own_name is not None:
        request.model = own_name
        patch.set("model", msgspec.json.encode(own_name))


def take_suffix(patch: BodyPatch, request: CompletionRequest, known: Container[str]) -> None:
    """Puts the name of the model alone in place of one with the suffix, unless the suffix is part of a known name.

    Like any other "false" the suffix wins, so that it stands in the request as the field does. The request is changed
    as its body is.
    """
    name = request.model.removesuffix(NO_SPECULATION)
    if request.model not in known and name in known:
        request.model = name
        request.enable_speculative = False
        patch.set("model", msgspec.json.encode(name))
