"""Features of a request, as the policy sees it."""

import math
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw

from policies import RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.config.grammar import thinking_default
from serve.config.model_names import ModelNames
from serve.errors import InvalidRequestError, ModelNotFoundError
from serve.http1.turns import LONG_BODY_BYTES
from serve.parsing.families import USUAL, Thinking, thinking_of
from serve.request.completion import (
    MALFORMED,
    NONE,
    ChatMessage,
    Choice,
    CompletionRequest,
    Format,
    Tool,
    allowed_tokens,
    format_of,
    given,
    has_any,
    is_list,
)
from serve.request.media import has_images
from serve.request.patch import BodyPatch
from serve.request.thinking import set_switch, thinks

PREFERENCE_HEADER = "x-enable-speculative"
# In order of precedence: ours, Claude-Code-like agents', and Codex' of today and of earlier versions.
SESSION_HEADERS = ("x-session-id", "x-claude-code-session-id", "session-id", "session_id")
_PREFERENCES = {"true": True, "false": False}
_CHOICES = frozenset({"auto", "required", "none"})
_STRUCTURED = ("structured_outputs", "regex", "ebnf", "json_schema", "grammar")
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_THINKING = ("chat_template_kwargs", "reasoning_effort", "thinking")
_is_structured, _is_guided, _speaks_of_thinking = has_any(*_STRUCTURED), has_any(*_GUIDED), has_any(*_THINKING)
# What a request may say beside its messages; most of those without tools say nothing of it.
_says_more = has_any(
    "tools", "tool_choice", "parallel_tool_calls", "response_format", *_STRUCTURED, *_GUIDED, *_THINKING,
    "include_reasoning", "thinking_token_budget", "stop", "n", "logprobs", "top_logprobs", "prompt_logprobs", "echo",
    "logit_bias", "min_p", *_PENALTIES,
)  # fmt: skip
_NO_STOP = re.compile(rb'null|""|\[\s*\]')
_SHOWN_CHARS = 100  # of a name that a client made up
_LONGEST_NAME = 256  # of a conversation
# A prompt has fewer tokens than that: three bytes are a Chinese character, or less than a token of English or code.
_BYTES_PER_TOKEN = 3
_USUAL_ANSWER = 4096  # tokens, where the request sets no bound
_SHORT_CONTEXT = 8192  # tokens, where nobody states the model's
_SAMPLING_EPS = 1e-5  # vLLM's: a temperature below it is 0, and so is a min_p up to it
_NOT_SAID = frozenset({"type", "cache_control"})  # of a part: the latter moves to each turn's last message
_parts = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_EMPTY = re.compile(rb"null|\{\s*\}")


def _any_model(_: str) -> bool:
    return True


class FeatureReader:
    """Reads the features of requests for the models of one configuration, by all their names."""

    def __init__(self, config: GatewayConfig) -> None:
        self.names = ModelNames(config.each_name())
        contexts = _contexts(config)
        self._models = {
            alias: (name, thinking_default(model), thinking_of(model.grammar), contexts.get(name, _SHORT_CONTEXT))
            for alias, name in self.names.exact.items()
            for model in [config.models[name]]
        }
        self._names = tuple(config.models)

    def read(
        self,
        request: CompletionRequest,
        headers: Mapping[str, str],
        may_use: Callable[[str], bool] = _any_model,
        *,
        size_bytes: int = 0,
    ) -> RequestFeatures:
        """Returns the request's features, under the configuration's own name of the model.

        `may_use` is False for a model, given its own name, that does not exist for this caller. `size_bytes` of the
        body bound the prompt's tokens.

        Raises:
            InvalidRequestError: The request contradicts itself or asks for something that does not exist.
            ModelNotFoundError: No model has that name; the message names those that the caller may use.
        """
        name, default, thinking, context = self._models.get(request.model, (None, False, USUAL, _SHORT_CONTEXT))
        features = features_of(request, headers, default, thinking)
        if name is None or not may_use(name):
            raise ModelNotFoundError.unknown(request.model, filter(may_use, self._names))
        if size_bytes // _BYTES_PER_TOKEN + (allowed_tokens(request) or _USUAL_ANSWER) >= context:
            return features._replace(model=name, near_end=True)
        return features.of_model(name)

    def set_switch(self, patch: BodyPatch, request: CompletionRequest) -> None:
        """Sets the switch for thinking that the model's own template reads.

        It stays as it is if the request says nothing about thinking, or in the template's own words.
        """
        if request.messages is not None and _speaks_of_thinking(request):
            _, _, thinking, _ = self._models[request.model]
            set_switch(patch, request, thinking)


def features_of(
    request: CompletionRequest,
    headers: Mapping[str, str],
    thinks_by_default: bool | None = False,
    thinking: Thinking = USUAL,
) -> RequestFeatures:
    """Returns the features of a request, under the model name that the caller used.

    `thinks_by_default` is True if the model thinks when the request does not say; None for its template's choice.

    Raises:
        InvalidRequestError: The request contradicts itself or asks for something that does not exist.
    """
    plain = RequestFeatures(
        model=request.model,
        stream=bool(request.stream),
        thinking=thinking.thinks({}, thinks_by_default),
        images=_has_images(request.messages),
        tool_history=_has_tool_history(request.messages),
        conversation_key=_conversation_key(request, headers),
        preference=_preference(request, headers),
    )
    if not _says_more(request):
        return plain
    choice = _tool_choice(request)
    form = format_of(request)
    kind = form.type if form else "text"
    return plain._replace(
        tools=len(request.tools) if request.tools else 0,
        tool_choice=choice,
        strict_tools=_any_strict(request.tools),
        strict_schema=kind == "json_schema" and _strict_schema(form),
        response_format=None if kind == "text" else kind,
        structured_outputs=_is_structured(request),
        guided=_is_guided(request),
        thinking=thinks(request, thinks_by_default, thinking) if _speaks_of_thinking(request) else plain.thinking,
        include_reasoning=request.include_reasoning is not False,
        stop=request.stop is not NONE and not _NO_STOP.fullmatch(request.stop),
        logprobs=request.logprobs is not None and request.logprobs is not False,
        n=1 if request.n is None else request.n,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        unspeculable=(request.logit_bias is not NONE or request.min_p is not NONE) and is_unspeculable(request),
        penalties=has_penalties(request),
        prompt_logprobs=_wants_prompt_logprobs(request),
        thinking_budget=given(request.thinking_token_budget),
    )


def _contexts(config: GatewayConfig) -> dict[str, int]:
    """Returns the shortest context that the pools of each model state."""
    stated: dict[str, int] = {}
    for pool in config.pool_facts():
        length = pool.settings.get("max_model_len")
        if isinstance(length, int) and length > 0:
            stated[pool.model] = min(length, stated.get(pool.model, length))
    return stated


def _tool_choice(request: CompletionRequest) -> str | None:
    """Returns `auto`, `required`, `named` or `none`; None without tools."""
    choice = request.tool_choice
    if isinstance(choice, Choice):
        return _object_choice(choice, {tool.function.name for tool in request.tools or () if tool.function})
    if choice is not None and choice not in _CHOICES:
        raise InvalidRequestError(
            f"`tool_choice` must be `auto`, `required`, `none` or an object that names a function, not "
            f"{choice[:_SHOWN_CHARS]!r}.",
            param="tool_choice",
        )
    if choice == "required" and not request.tools:
        raise InvalidRequestError("`tool_choice` is `required`, but the request offers no tools.", param="tool_choice")
    return choice or "auto" if request.tools else None


def _object_choice(choice: Choice, names: set[str]) -> str:
    if choice.type == "allowed_tools":
        return "required" if choice.allowed_tools and choice.allowed_tools.mode == "required" else "auto"
    name = choice.function.name if choice.function else None
    if choice.type != "function" or name is None:
        raise InvalidRequestError(
            'As an object, `tool_choice` must have the form {"type": "function", "function": {"name": ...}}.',
            param="tool_choice",
        )
    if name not in names:
        offered = ", ".join(sorted(names)) or "none"
        raise InvalidRequestError(
            f"`tool_choice` names the function {name[:_SHOWN_CHARS]!r}, which `tools` does not offer "
            f"(it offers: {offered}).",
            param="tool_choice",
        )
    return "named"


def _any_strict(tools: list[Tool] | None) -> bool:
    for tool in tools or ():  # noqa: SIM110 - most requests have none, and any() with a generator costs them most
        if tool.function is not None and tool.function.strict is True:
            return True
    return False


def _strict_schema(response_format: Format | None) -> bool:
    schema = response_format.json_schema if response_format else None
    return bool(schema and schema.strict)


def _wants_prompt_logprobs(request: CompletionRequest) -> bool:
    if given(request.prompt_logprobs):
        return True
    asked = request.logprobs is not None or request.top_logprobs is not None
    return request.echo is not NONE and bytes(request.echo) == b"true" and asked


def _has_images(messages: list[ChatMessage] | None) -> bool:
    for message in messages or ():  # noqa: SIM110 - as above; only a list of parts holds media
        if is_list(message.content) and has_images(message.content):
            return True
    return False


def _has_tool_history(messages: list[ChatMessage] | None) -> bool:
    for message in messages or ():  # noqa: SIM110 - half the time of any() with a generator
        if message.tool_calls or message.role == "tool":
            return True
    return False


def _conversation_key(request: CompletionRequest, headers: Mapping[str, str]) -> str:
    """Returns what is the same for every turn of a conversation.

    The client's own name for it comes first: one of `SESSION_HEADERS`, then `prompt_cache_key`. Without either it is a
    checksum up to the user's first message. `user` is ignored: one user has many conversations at a time.
    """
    if not headers.keys().isdisjoint(SESSION_HEADERS):  # as mostly they are
        for name in SESSION_HEADERS:
            if headers.get(name):
                return _short(headers[name])
    if request.prompt_cache_key:
        return _short(str(request.prompt_cache_key))
    check = crc32(request.prompt)
    for message in request.messages or ():
        check = _check_of(message.content, check)
        if message.role == "user":
            break
    return f"{check:08x}"


def _short(name: str) -> str:
    """Returns a client's name for a conversation, or a hash of a long one: those of thousands are remembered."""
    if len(name) <= _LONGEST_NAME:
        return name
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _check_of(content: Raw, check: int) -> int:
    """Returns a checksum that goes on with what a message says: its words are the same as a text and in parts, wherever
    a cache's mark stands. Parts that are long are not read, which would hold up other requests.
    """
    if not is_list(content) or len(memoryview(content)) > LONG_BODY_BYTES:
        return crc32(content, check)
    try:
        parts = _parts(content)
    except MALFORMED:
        return crc32(content, check)
    check = crc32(b'"', check)
    for part in parts:
        for name, value in part.items():
            if name == "text":
                check = crc32(memoryview(value)[1:-1], check)
            elif name not in _NOT_SAID:
                check = crc32(value, check)
    return crc32(b'"', check)


def _preference(request: CompletionRequest, headers: Mapping[str, str]) -> bool | None:
    """Combines body and header, which may be a list; `false` anywhere is a guarantee and wins."""
    header = headers.get(PREFERENCE_HEADER)
    by_header = None
    if header is not None:
        said = [_PREFERENCES.get(each.strip().lower()) for each in header.split(",")]
        if None in said:
            raise InvalidRequestError(
                f"The header {PREFERENCE_HEADER} must be `true` or `false`, not {header!r}.", param=PREFERENCE_HEADER
            )
        by_header = all(said)
    by_body = None if request.enable_speculative is UNSET else request.enable_speculative
    if by_header is False or by_body is False:
        return False
    return by_header or by_body or None


def is_unspeculable(request: CompletionRequest) -> bool:
    """Returns True if vLLM refuses the sampling parameters as soon as its engine has a drafter."""
    if request.logit_bias is not NONE and not _EMPTY.fullmatch(request.logit_bias):
        return True
    if request.min_p is NONE or _number(request.min_p, 0.0) <= _SAMPLING_EPS:
        return False
    return _number(request.temperature, 1.0) >= _SAMPLING_EPS  # greedy sampling ignores min_p


def has_penalties(request: CompletionRequest) -> bool:
    """Returns True if the request asks for a penalty other than the neutral one."""
    return (
        (request.frequency_penalty is not NONE and _number(request.frequency_penalty, 0.0) != 0.0)
        or (request.presence_penalty is not NONE and _number(request.presence_penalty, 0.0) != 0.0)
        or (request.repetition_penalty is not NONE and _number(request.repetition_penalty, 1.0) != 1.0)
    )


def _number(raw: Raw, default: float) -> float:
    """Returns a number as engines read it, in quotes too; what is none counts as a value that matters."""
    if raw == NONE:
        return default
    try:
        return float(bytes(raw).strip(b'"'))
    except ValueError:
        return math.inf
