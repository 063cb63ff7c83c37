"""A request's body: the fields that the gateway reads, by one partial decoding."""

import re
import unicodedata
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from serve.errors import InvalidRequestError
from serve.request.long_json import decode

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
COMPLETION_PATHS = frozenset({CHAT_PATH, TEXT_PATH})
PREFERENCE_FIELD = "enable_speculative"
UNKNOWN_FIELD = "field_not_allowed"  # the code of an error

NONE = Raw(b"null")
_LIST = ord("[")
_IDS = re.compile(rb"\[\s*\d")
_WINDOW_BYTES = 1024 * 1024
_LONGEST_NAME = 64
_LENGTHS = attrgetter("max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens")
_whole = msgspec.json.Decoder(int, strict=False)  # made once: that takes longer than it takes to decode


class FieldNames:
    """The names of an object that the gateway reads, and what others might take for one of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._folded = frozenset(map(_folded, self._names))

    def like(self, names: Iterable[str]) -> list[str]:
        """Returns those of an object's names that are none of these, but might be to a reader that is not strict."""
        # A known one has half as many letters; to fold megabytes takes seconds.
        others = [name for name in names if name not in self._names and len(name) <= _LONGEST_NAME]
        return [name for name in others if _folded(name) in self._folded]


def _folded(name: str) -> str:
    """Returns what is left of a name for readers that are not strict: Go's match any case, protobuf's `cacheSalt`."""
    return unicodedata.normalize("NFKC", name).casefold().replace("_", "")


def given(value: Raw) -> bool:
    """Returns True if a member is there and not null."""
    return value != NONE


def holds(text: bytes, mark: bytes) -> bool:
    """Returns True if a text holds a mark; searches a long one in windows, because no other thread runs meanwhile."""
    if len(text) <= _WINDOW_BYTES:
        return text.find(mark) >= 0  # in a third of the time of `in`, which tries for a number first
    starts = range(0, len(text), _WINDOW_BYTES)
    return any(text.find(mark, start, start + _WINDOW_BYTES + len(mark)) >= 0 for start in starts)


def is_list(content: Raw) -> bool:
    """Returns True if a message's content is a list of parts, not a text."""
    return memoryview(content)[0] == _LIST  # of JSON, which is never empty


def is_several(prompt: Raw) -> bool:
    """Returns True if the prompt of a text completion may be several: a list, but not of the ids of one."""
    return prompt is not NONE and is_list(prompt) and _IDS.match(memoryview(prompt)) is None


# `gc=False`: a long conversation is thousands of these, and none can be part of a cycle.


class _Skipped(Struct, gc=False):
    """An object whose presence alone matters."""


class _Function(Struct, gc=False):
    name: str
    strict: bool | None = None
    parameters: Raw = NONE


class Tool(Struct, gc=False):
    type: str = "function"
    function: _Function | None = None


class ChatMessage(Struct, gc=False):
    role: str = ""
    content: Raw = NONE
    tool_calls: list[_Skipped] | None = None


class JsonSchema(Struct, gc=False):
    strict: bool | None = None
    schema: Raw = NONE


class Format(Struct, gc=False):
    type: str
    json_schema: JsonSchema | None = None
    structures: Raw = NONE  # of a structural tag, as is `format`
    format: Raw = NONE


class _Named(Struct, gc=False):
    name: str | None = None


class _AllowedTool(Struct, gc=False):
    function: _Named | None = None


class _AllowedTools(Struct, gc=False):
    mode: str | None = None
    tools: list[_AllowedTool] | None = None


class Choice(Struct, gc=False):
    type: str = "function"  # engines' default, on which Hugging Face's client relies
    function: _Named | None = None
    allowed_tools: _AllowedTools | None = None


class EngineFields(Struct, kw_only=True, gc=False):
    """Fields that must not reach an engine; see `serve.request.field_rules`."""

    # Addresses, files, code and state of the engine.
    kv_transfer_params: Raw = NONE
    ec_transfer_params: Raw = NONE
    disaggregated_params: Raw = NONE
    bootstrap_host: Raw = NONE
    bootstrap_port: Raw = NONE
    bootstrap_room: Raw = NONE
    logits_processors: Raw = NONE
    custom_logit_processor: Raw = NONE
    custom_params: Raw = NONE
    lora_path: Raw = NONE
    lora_request: Raw = NONE
    lora: Raw = NONE
    adapters: Raw = NONE
    draft_model: Raw = NONE
    session_params: Raw = NONE
    chat_template: Raw = NONE
    guided_decoding_backend: Raw = NONE
    prompt_embeds: Raw = NONE
    input_embeds: Raw = NONE
    input_ids: Raw = NONE
    image_data: Raw = NONE
    media_io_kwargs: Raw = NONE
    mm_processor_kwargs: Raw = NONE
    images_config: Raw = NONE
    video_config: Raw = NONE
    max_dynamic_patch: Raw = NONE
    min_dynamic_patch: Raw = NONE
    # A little of these is much work for an engine, in a step of all requests.
    prompt_logprobs: Raw = NONE
    use_beam_search: Raw = NONE
    stop_regex: Raw = NONE
    repetition_detection: Raw = NONE
    n_discard: Raw = NONE
    return_hidden_states: Raw = NONE
    return_routed_experts: Raw = NONE
    # Where another gateway would send the request, with which secrets, and what it would answer itself.
    api_base: Raw = NONE
    base_url: Raw = NONE
    fallbacks: Raw = NONE
    model_list: Raw = NONE
    litellm_params: Raw = NONE
    custom_llm_provider: Raw = NONE
    vertex_credentials: Raw = NONE
    api_key: Raw = NONE
    user_config: Raw = NONE
    extra_headers: Raw = NONE
    extra_body: Raw = NONE
    mock_response: Raw = NONE
    mock_tool_calls: Raw = NONE
    mock_timeout: Raw = NONE
    mock_delay: Raw = NONE
    mock_testing_fallbacks: Raw = NONE
    guardrails: Raw = NONE
    litellm_credential_name: Raw = NONE
    aws_access_key_id: Raw = NONE
    aws_secret_access_key: Raw = NONE
    aws_session_token: Raw = NONE
    azure_ad_token: Raw = NONE
    # Places in queue, cache, frames and books, and marks in the text, which are not the client's to choose.
    request_id: Raw = NONE
    rid: Raw = NONE
    session_id: Raw = NONE
    priority: Raw = NONE
    data_parallel_rank: Raw = NONE
    routed_dp_rank: Raw = NONE
    disagg_prefill_dp_rank: Raw = NONE
    id_slot: Raw = NONE
    cache_salt: Raw = NONE
    extra_key: Raw = NONE
    custom_labels: Raw = NONE
    stream_interval: Raw = NONE
    watermark: Raw = NONE
    watermarking: Raw = NONE
    nvext: Raw = NONE
    extra_args: Raw = NONE
    vllm_xargs: dict[str, Raw] | UnsetType | None = UNSET


class CompletionRequest(EngineFields, kw_only=True, gc=False):
    """A chat or text completion: the fields that policy and guard need. All others are skipped, not built."""

    model: str
    messages: list[ChatMessage] | None = None
    prompt: Raw = NONE
    stream: bool | None = None
    stream_options: Raw = NONE
    tools: list[Tool] | None = None
    tool_choice: str | Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    guided_json: Raw = NONE
    guided_regex: Raw = NONE
    guided_choice: Raw = NONE
    guided_grammar: Raw = NONE
    # SGLang's fields of that kind, and llama.cpp's.
    regex: Raw = NONE
    ebnf: Raw = NONE
    json_schema: Raw = NONE
    grammar: Raw = NONE
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking: Raw = NONE
    thinking_token_budget: Raw = NONE
    n: int | None = None
    best_of: int | None = None
    n_cmpl: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    n_probs: int | None = None
    logprob_token_ids: Raw = NONE
    logit_bias: Raw = NONE
    chat_template_kwargs: dict[str, Raw] | None = None
    structured_outputs: Raw = NONE
    stop: Raw = NONE
    stop_token_ids: Raw = NONE
    bad_words: Raw = NONE
    prompt_cache_key: str | int | None = None
    # Engines read numbers in strings, too, so that these are read where they matter.
    temperature: Raw = NONE
    min_p: Raw = NONE
    frequency_penalty: Raw = NONE
    presence_penalty: Raw = NONE
    repetition_penalty: Raw = NONE
    echo: Raw = NONE
    max_tokens: Raw = NONE
    max_completion_tokens: Raw = NONE
    n_predict: Raw = NONE
    max_new_tokens: Raw = NONE
    return_token_ids: Raw = NONE
    enable_speculative: bool | UnsetType | None = UNSET


def has_any(*names: str) -> Callable[[CompletionRequest], bool]:
    """Returns what tells whether a request has any of some fields, all at one look: most have none of the rare ones."""
    values = attrgetter(*names)
    absent = values(CompletionRequest(model=""))
    return lambda request: values(request) != absent


# Fields without a rule that mode `strict` knows, beside those that the gateway reads.
HARMLESS = frozenset(
    {"top_p", "top_k", "seed", "max_tokens", "max_completion_tokens", "min_tokens",
     "length_penalty", "allowed_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
     "spaces_between_special_tokens", "add_special_tokens", "add_generation_prompt", "continue_final_message",
     "truncate_prompt_tokens", "truncation_side", "return_tokens_as_token_ids", "return_token_offsets",
     "return_prompt_text", "return_mm_kwargs", "mm_payload", "routed_experts_prompt_start", "documents",
     "suffix", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_retention",
     "verbosity", "modalities", "prediction", "functions", "function_call"}
)  # fmt: skip

RequestDecoder = msgspec.json.Decoder[CompletionRequest]
ANY_FIELDS = msgspec.json.Decoder(CompletionRequest)
_LOCATION = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`$", re.DOTALL)
_SHOWN_CHARS = 100  # of a name that a client made up
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def allowed_tokens(request: CompletionRequest) -> int | None:
    """Returns the most tokens that an answer may have; None if the request does not say.

    Servers differ in which of the fields they obey, so that the largest counts, and in what they make of a bound below
    1: SGLang takes 0 for none, llama.cpp -1. What is no number is for the engine to refuse.
    """
    try:
        bounds = [_whole.decode(value) for value in _LENGTHS(request) if value != NONE]
    except MALFORMED:
        return None
    return max(bounds) if bounds and min(bounds) > 0 else None


def strict_decoder(pass_fields: Iterable[str]) -> RequestDecoder:
    """Returns the decoder of mode `strict`, which refuses every field that nobody knows or lets pass."""
    further = [(name, Raw, NONE) for name in {*HARMLESS, *pass_fields}.difference(CompletionRequest.__struct_fields__)]
    strict = msgspec.defstruct(
        "StrictRequest", further, bases=(CompletionRequest,), kw_only=True, gc=False, forbid_unknown_fields=True
    )
    return msgspec.json.Decoder(cast("type[CompletionRequest]", strict))


def parse(body: bytes, decoder: RequestDecoder = ANY_FIELDS) -> CompletionRequest:
    """Returns the request that a body holds. The decoder says whether unknown fields are accepted.

    Raises:
        InvalidRequestError: The body is not the JSON of a chat or text completion.
    """
    try:
        return decode(decoder, body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except MALFORMED as error:
        if not body.strip():
            raise InvalidRequestError("The body is empty.", code="invalid_json") from error
        raise not_json(error) from error


def not_json(error: Exception) -> InvalidRequestError:
    """Returns the error for a body that does not decode."""
    return InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json")


def not_allowed(name: str, param: str | None = None, allow: str | None = "") -> InvalidRequestError:
    """Returns the error for a field that must not reach an engine. `param` is where it stands, if not at the top;
    `allow` what the operator lists to let it through, if not its name, or None if no setting does.
    """
    way_out = "" if allow is None else f" An operator allows it with `requests.pass_fields: [{allow or name}]`."
    return InvalidRequestError(
        f"The field `{name}` is not accepted here: it would steer the engine itself.{way_out}",
        param=param or name,
        code=UNKNOWN_FIELD,
    )


def _invalid(text: str) -> InvalidRequestError:
    """Translates msgspec's message about types into one about the request."""
    location = _LOCATION.search(text)
    if location is None and "missing required field `model`" in text:
        return InvalidRequestError("The field `model` is missing.", param="model", code="missing_field")
    if unknown := _UNKNOWN.search(text):
        name = unknown[1][:_SHOWN_CHARS]
        return InvalidRequestError(
            f"The field `{name}` is not known here. An operator allows it with `requests.pass_fields: [{name}]`, or "
            "any with `requests.mode: open`.",
            param=name,
            code=UNKNOWN_FIELD,
        )
    if location is None:
        return InvalidRequestError(f"The body must be a JSON object: {text}.")
    param = location[1]
    return InvalidRequestError(f"The field `{param}` is wrong: {text[: location.start()]}.", param=param)


class _Asked(msgspec.Struct, gc=False):
    json: Raw = NONE
    json_object: Raw = NONE


_asked = msgspec.json.Decoder(_Asked)
_text = msgspec.json.Decoder(str)
_object = msgspec.json.Decoder(dict[str, Raw])


def format_of(request: CompletionRequest) -> Format | None:
    """Returns the format that the answer must have, if any.

    vLLM makes `structured_outputs` of a JSON `response_format`, so that both are judged and routed alike.
    """
    form = request.response_format
    if request.structured_outputs is NONE or (form is not None and form.type != "text"):
        return form
    schema = schema_of(request.structured_outputs)
    try:
        _object.decode(schema)
    except MALFORMED:  # the engine will say what it thinks of it
        return Format("json_object") if bytes(_read(request.structured_outputs).json_object) == b"true" else form
    return Format("json_schema", JsonSchema(strict=True, schema=Raw(schema)))


def schema_of(structured_outputs: Raw) -> bytes:
    """Returns what stands for a schema, if in a string, and whether or not it is one; `null` if nothing does."""
    return out_of_text(bytes(_read(structured_outputs).json))


def out_of_text(schema: bytes) -> bytes:
    """Returns a schema as JSON, which may be that of a text that holds it; `null` for a text that nobody can read."""
    try:
        return _text.decode(schema).encode() if schema.startswith(b'"') else schema
    except MALFORMED:
        return bytes(NONE)


def _read(structured_outputs: Raw) -> _Asked:
    try:
        return _asked.decode(structured_outputs)
    except MALFORMED:
        return _Asked()
