"""The fields of a body that must not reach an engine as they are, how much others may hold, and what the gateway does.

An engine trusts its caller: some fields name addresses that it connects to, code that it runs, or other clients' state.
A body is not searched for them: the decoder that reads it anyway collects the fields of this table.
"""

import json
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import astuple

from serve.config.gateway import LimitsConfig, RequestsConfig
from serve.errors import CustomToolsError, InvalidRequestError
from serve.request.completion import (
    MALFORMED,
    NONE,
    Choice,
    CompletionRequest,
    EngineFields,
    FieldNames,
    has_any,
    is_list,
    not_allowed,
    out_of_text,
    schema_of,
)
from serve.request.long_json import decode
from serve.request.media import MediaRules

REFUSE = "refuse"
STRIP = "strip"
_STRIPPED = frozenset(
    {"request_id", "rid", "session_id", "priority", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
     "id_slot", "cache_salt", "extra_key", "custom_labels", "stream_interval", "watermark", "watermarking",
     "nvext", "extra_args",  # Dynamo's: with workers, places in queue and cache, and the tokens of another prompt
     "vllm_xargs", "extra_body"}  # in the last, other gateways would find what is refused
)  # fmt: skip
_NAMES, _ABSENT = EngineFields.__struct_fields__, EngineFields.__struct_defaults__
# docs/reference/http-api.md shows this table; `requests.pass_fields` lets a field through.
ACTIONS = {name: STRIP if name in _STRIPPED else REFUSE for name in _NAMES}
_SEVERAL_PROMPTS = re.compile(rb'\s*\[\s*["\[]')
_LOGIT_BIAS_BYTES = 16 * 1024
_STOP_BYTES = 64 * 1024  # more than any list of texts or tokens to stop at, or to leave out
_OFF = Raw(b"false")
_WHOLE_VOCABULARY = -1  # as a number of alternatives
# Engines render the template with these as arguments of the function that does it, which also pads and cuts prompts.
_NOT_FOR_TEMPLATES = frozenset(
    {"chat_template", "conversation", "messages", "tools", "documents", "tokenize", "tokenizer", "return_dict",
     "return_tensors", "tokenizer_kwargs", "processor_kwargs", "continue_final_message", "add_generation_prompt",
     "padding", "truncation", "max_length", "return_assistant_tokens_mask", "load_audio_from_video"}
)  # fmt: skip
# From these an engine would make a grammar, too.
_SCHEMAS = ("guided_json", "json_schema")
_GRAMMARS = (*_SCHEMAS, "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "grammar")
_given_grammars = attrgetter(*_GRAMMARS)
_MOST_N, _MOST_LOGPROBS = ("n", "best_of", "n_cmpl"), ("top_logprobs", "logprobs", "n_probs")
_STOPS = ("stop", "stop_token_ids", "bad_words")
_has_bounded = has_any(*_MOST_N, *_MOST_LOGPROBS, "logprob_token_ids", "logit_bias", *_STOPS)
# Tells whether a request may have schemas.
constrains = has_any("tools", "tool_choice", "response_format", "structured_outputs", *_GRAMMARS)
_flags = msgspec.json.Decoder(dict[str, Raw])


_TOP = FieldNames(CompletionRequest.__struct_fields__)


class FieldRules:
    """Applies the rules of one configuration to requests."""

    def __init__(self, config: RequestsConfig) -> None:
        self._config = config
        self._media = MediaRules(config.media_hosts, config.pass_fields)
        self._most = (
            *((name, config.max_n, "max_n") for name in _MOST_N),
            *((name, config.max_top_logprobs, "max_top_logprobs") for name in _MOST_LOGPROBS),
        )
        self._check_template = "chat_template_kwargs" not in config.pass_fields
        slots = [(f"p{index}", Raw, NONE) for index in range(config.max_prompts)]
        prompts = msgspec.defstruct("Prompts", slots, array_like=True, forbid_unknown_fields=True)
        self._prompts = msgspec.json.Decoder(prompts)  # stops at the first prompt too many

    def apply(self, request: CompletionRequest) -> Sequence[str]:
        """Returns the names of the fields that must be taken out of the body.

        Raises:
            InvalidRequestError: A field is not allowed, or holds too much.
        """
        values = astuple(request)[: len(_NAMES)]  # those of the base come first
        names = () if values == _ABSENT else self._stripped(values)
        if _has_bounded(request):
            self._check_numbers(request)
            _check_stops(request)
        if request.prompt is not NONE:
            self._check_prompts(request.prompt)
        if request.chat_template_kwargs and self._check_template:
            _check_template(request.chat_template_kwargs)
        if request.structured_outputs is not NONE:
            _check_structured(request.structured_outputs)
        parts = [message.content for message in request.messages or () if is_list(message.content)]
        if parts:
            self._media.check(parts)
        return names

    def lookalikes(self, body: bytes) -> list[str]:
        """Returns the names in a body that are none of a field that the gateway reads, but might be to another reader.

        Raises:
            DecodeError: The body is no JSON in a part that its first reader passed over.
        """
        names = _TOP.like(decode(_flags, body).keys())
        return [name for name in names if name not in self._config.pass_fields]

    def _stripped(self, values: Sequence[Any]) -> list[str]:
        names = []
        for name, value, absent in zip(_NAMES, values, _ABSENT, strict=True):
            if value == absent or value is None or name in self._config.pass_fields:
                continue
            if ACTIONS[name] is STRIP:
                names.append(name)
            elif value != _OFF:
                raise not_allowed(name)
        return names

    def _check_numbers(self, request: CompletionRequest) -> None:
        for name, most, setting in self._most:
            value: float | None = getattr(request, name)
            if value is not None and (value > most or value == _WHOLE_VOCABULARY):
                raise _too_many(name, most, setting)
        most = self._config.max_top_logprobs
        if request.logprob_token_ids is not NONE and bytes(request.logprob_token_ids).count(b",") >= most:
            raise _too_many("logprob_token_ids", most, "max_top_logprobs")
        if request.logit_bias is not NONE:
            raw, most = bytes(request.logit_bias), self._config.max_logit_bias
            if len(raw) > _LOGIT_BIAS_BYTES or raw.count(b":") > most:
                raise _too_many("logit_bias", most, "max_logit_bias")

    def _check_prompts(self, prompt: Raw) -> None:
        """Counts prompts; one prompt may be a list as well, of tokens."""
        if not _SEVERAL_PROMPTS.match(prompt):
            return
        try:
            self._prompts.decode(prompt)
        except msgspec.ValidationError as error:
            raise _too_many("prompt", self._config.max_prompts, "max_prompts") from error


def _check_stops(request: CompletionRequest) -> None:
    for name in _STOPS:
        if len(bytes(getattr(request, name))) > _STOP_BYTES:
            raise InvalidRequestError(
                f"The field `{name}` has more than {_STOP_BYTES} bytes.", param=name, code="over_limit"
            )


def _check_template(arguments: dict[str, Raw]) -> None:
    for name, value in arguments.items():
        if name in _NOT_FOR_TEMPLATES or bytes(memoryview(value)[:1]) in (b"{", b"["):
            raise not_allowed(f"chat_template_kwargs.{name}", allow="chat_template_kwargs")
        msgspec.json.decode(value)  # bytes that are no text must not reach a template


def _check_structured(raw: Raw) -> None:
    if not bytes(raw).lstrip().startswith(b"{"):
        return  # the engine will say what it thinks of it
    for name in _flags.decode(raw):
        if name.startswith("_") or "backend" in name:
            raise not_allowed(f"structured_outputs.{name}", allow=None)


def _too_many(name: str, most: int, setting: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The field `{name}` is over the limit of {most}, which the operator sets with `requests.{setting}`.",
        param=name,
        code="over_limit",
    )


def check_schemas(request: CompletionRequest, bounds: LimitsConfig) -> None:
    """Refuses a request whose schemas are larger than any that is meant well.

    Raises:
        CustomToolsError: A tool takes plain text.
        InvalidRequestError: A schema, or all of them together, is too large.
    """
    tools = request.tools or ()
    if len(tools) > bounds.max_tools:
        raise _over(f"more tools ({len(tools)})", "max_tools", bounds.max_tools, "tools")
    choice = request.tool_choice
    allowed = choice.allowed_tools if isinstance(choice, Choice) else None
    if allowed is not None and len(allowed.tools or ()) > bounds.max_tools:
        raise _over("more allowed tools", "max_tools", bounds.max_tools, "tool_choice")
    form = request.response_format
    schemas = [(bytes(tool.function.parameters), "tools") for tool in tools if tool.function]
    if len(schemas) < len(tools) and any(tool.type == "custom" for tool in tools):
        raise CustomToolsError("No engine knows custom tools. Offer functions.", param="tools")
    if form is not None:
        parts = (form.json_schema.schema if form.json_schema else NONE, form.structures, form.format)
        schemas += [(bytes(part), "response_format") for part in parts if part is not NONE]
    if request.structured_outputs is not NONE:
        schemas += [(grammar, "structured_outputs") for grammar in _grammars(request.structured_outputs)]
    schemas += [
        (out_of_text(bytes(value)) if name in _SCHEMAS else bytes(value), name)
        for name, value in zip(_GRAMMARS, _given_grammars(request), strict=True)
        if value is not NONE
    ]
    size = 0
    nodes = 0
    for schema, param in schemas:
        size += len(schema)
        if size > bounds.max_schema_bytes:
            raise _over("schemas with more bytes", "max_schema_bytes", bounds.max_schema_bytes, param)
        containers = schema.count(b"{") + schema.count(b"[")
        most = containers + schema.count(b",") + schema.count(b":")
        if containers > bounds.max_schema_depth or nodes + most > bounds.max_schema_nodes:
            most = _nodes(schema, bounds, param)
        nodes += most
        if nodes > bounds.max_schema_nodes:
            raise _over("schemas with more values", "max_schema_nodes", bounds.max_schema_nodes, param)


def _grammars(structured_outputs: Raw) -> list[bytes]:
    """Returns the JSON of all from which an engine would make a grammar: a schema, choices, a pattern."""
    try:
        members = _flags.decode(structured_outputs)
    except MALFORMED:  # the engine will say what it thinks of it
        members = {}
    return [schema_of(structured_outputs), *(bytes(value) for name, value in members.items() if name != "json")]


def _nodes(schema: bytes, bounds: LimitsConfig, param: str) -> int:
    """Returns the number of values in a schema, or one that is too high."""
    try:
        root = _decoded(schema)
    except (RecursionError, ValueError) as error:
        raise InvalidRequestError(f"The request has a schema that can't be read: {error}.", param=param) from error
    level = [root] if isinstance(root, dict | list) else []
    nodes = 1
    depth = 0
    while level:
        nodes += sum(map(len, level))
        if nodes > bounds.max_schema_nodes:
            break
        level = [
            part
            for value in level
            for part in (value.values() if type(value) is dict else value)
            if type(part) is dict or type(part) is list
        ]
        depth += 1
        if level and depth > bounds.max_schema_depth:
            raise _over("a schema with more levels", "max_schema_depth", bounds.max_schema_depth, param)
    return nodes


def _decoded(schema: bytes) -> Any:
    """Returns a schema without its numbers: what vLLM's decoder takes is taken, `1e400` too.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError:
        return json.loads(schema, parse_int=len, parse_float=len)


def _over(what: str, setting: str, most: int, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The request has {what} than this gateway allows: limits.{setting} is {most}.", param=param
    )
