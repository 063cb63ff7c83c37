"""A request as a text completion that goes on where its answer was cut, and the requests for which there is none.

What is exact and what is not was tried on real engines: docs/adr/0089.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from policies import RequestFeatures
from serve.request.completion import MALFORMED, NONE, given

# What goes on to a text completion as it is, and what only a chat has or what is counted from there.
_KEPT = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "logit_bias", "ignore_eos", "stop", "stop_token_ids", "user",
     "repetition_penalty", "priority", "cache_salt", "vllm_xargs"}
)  # fmt: skip
_LEFT_OUT = frozenset(
    {"model", "messages", "prompt", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
     "chat_template_kwargs", "include_reasoning", "thinking", "stream", "stream_options", "n", "max_tokens",
     "max_completion_tokens", "min_tokens", "response_format", "metadata", "store", "service_tier", "prompt_cache_key",
     "safety_identifier", "prompt_cache_retention", "verbosity", "frequency_penalty", "presence_penalty", "logprobs",
     "top_logprobs", "return_token_ids", "modalities", "seed"}
)  # fmt: skip
# What changes an answer where it was cut: penalties count what the completion adds, and a seed begins again.
_INEXACT = frozenset({"frequency_penalty", "presence_penalty", "seed"})
# What only the client's own text completion has, and what stays as the client wants it where nobody parses the text.
_OF_PROMPT = frozenset({"add_special_tokens"})
_OF_TEXT = frozenset({"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"})
_NEUTRAL = (b"null", b"false", b"0")
_GREEDY = (b"0", b"0.0")
_members = msgspec.json.Decoder(dict[str, Raw])
_count = msgspec.json.Decoder(int)
_stops = msgspec.json.Decoder(str | list[str])
_prompt = msgspec.json.Decoder(str | list[int])
_kwargs = msgspec.json.Decoder(dict[str, Any])


class CannotResumeError(Exception):
    """An answer can't go on elsewhere; its only argument is the reason, as metrics name it."""


def obstacle(features: RequestFeatures, *, exact: bool = True) -> str | None:
    """Returns why no answer to a request can go on elsewhere; None if one can, as far as its features say. What the
    engine knew of such an answer is not in its ids.

    If it must be `exact`, the rest is of the same distribution as if nothing had happened.
    """
    if features.images:
        return "images"
    if _has_grammar(features):
        return "grammar"
    if features.penalties and exact:  # they count the output, and the prefix has become prompt
        return "sampling"
    if features.n != 1:
        return "several"
    if features.logprobs or features.prompt_logprobs:
        return "logprobs"
    if features.thinking_budget or not features.include_reasoning:  # engines hide the ids of reasoning
        return "reasoning"
    return None


def _has_grammar(features: RequestFeatures) -> bool:
    """Returns whether an engine holds the answer to a grammar: that begins at its root, whatever the prompt holds."""
    return bool(
        features.response_format
        or features.structured_outputs
        or features.guided
        or features.tool_choice in ("required", "named")
        or features.strict_tools
    )


def tokenizing(body: bytes) -> bytes | list[int]:
    """Returns the body of vLLM's `/tokenize` that asks for the ids of a request's prompt, or the ids if it has them.

    Raises:
        CannotResumeError: Its prompt is not one text.
    """
    try:
        members = _members.decode(body)
        if "messages" in members:
            return _tokenizing_chat(members)
        prompt: str | list[int] = _prompt.decode(members.get("prompt", NONE))
    except MALFORMED as error:
        raise CannotResumeError("several") from error
    if not isinstance(prompt, str):
        return prompt
    return msgspec.json.encode({"prompt": prompt, "add_special_tokens": members.get("add_special_tokens", True)})


def _tokenizing_chat(members: Mapping[str, Raw]) -> bytes:
    """Does the same for a chat request; the arguments of its template are those of vLLM's chat route."""
    arguments: dict[str, Any] = {}
    effort, own = members.get("reasoning_effort", NONE), members.get("chat_template_kwargs", NONE)
    if given(effort):
        told = msgspec.json.decode(effort)
        arguments = {"reasoning_effort": told, "enable_thinking": told != "none"}
    if given(own):
        arguments |= _kwargs.decode(own)
    return msgspec.json.encode(
        {
            "messages": members["messages"],
            **({"tools": members["tools"]} if given(members.get("tools", NONE)) else {}),
            **({"chat_template_kwargs": arguments} if arguments else {}),
        }
    )


def continuation(
    body: bytes, prompt: Sequence[int], kept: Sequence[int], text: str, *, exact: bool = True, raw: bool = True
) -> bytes:
    """Returns the body of a text completion that goes on where the answer to a request was cut: the request's body as
    its engine got it, the ids of the prompt that the engine made of it, and those of the text that is kept. It is
    `exact` as of `obstacle`. If it is `raw`, somebody parses the text, who needs all of it; else it is the client's.

    Raises:
        CannotResumeError: The request asks for what a text completion does not know, or could not go on with.
    """
    try:
        members = _members.decode(body)
    except MALFORMED as error:
        raise CannotResumeError("fields") from error
    kept_fields, left_out = _KEPT, _LEFT_OUT
    if not exact:
        kept_fields = _KEPT | _INEXACT
    if not raw:
        kept_fields, left_out = kept_fields | _OF_TEXT, left_out | _OF_PROMPT
    if exact and given(members.get("seed", NONE)) and bytes(members.get("temperature", b"")) not in _GREEDY:
        raise CannotResumeError("sampling")  # the generator would start again
    for name, value in members.items():
        if name not in kept_fields and name not in left_out and bytes(value) not in _NEUTRAL:
            raise CannotResumeError("fields")
    if _may_stop_across(members, text):
        raise CannotResumeError("stop")
    limit = _number(members, "max_completion_tokens") or _number(members, "max_tokens")
    if limit is not None and limit <= len(kept):
        raise CannotResumeError("length")
    least = max((_number(members, "min_tokens") or 0) - len(kept), 0)
    streamed = bytes(members.get("stream", b"")) == b"true"
    return msgspec.json.encode(
        {
            "model": members["model"],
            "prompt": [*prompt, *kept],
            **{name: value for name, value in members.items() if name in kept_fields},
            "max_tokens": None if limit is None else limit - len(kept),
            **({"min_tokens": least} if least else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if streamed else {}),
            **({"skip_special_tokens": False, "spaces_between_special_tokens": False} if raw else {}),
            "add_special_tokens": False,  # in front of the prompt
        }
    )


def _number(members: Mapping[str, Raw], name: str) -> int | None:
    """Returns a number of tokens; None if it is not given.

    Raises:
        CannotResumeError: It is none, which no engine would have taken.
    """
    value = members.get(name)
    if value is None or not given(value):
        return None
    try:
        return _count.decode(value)
    except MALFORMED as error:
        raise CannotResumeError("fields") from error


def _may_stop_across(members: Mapping[str, Raw], text: str) -> bool:
    """Returns whether a text at which to stop may begin before the cut: the engine that goes on would not see it."""
    value = members.get("stop")
    if value is None or not given(value):
        return False
    try:
        stops = _stops.decode(value)
    except MALFORMED:
        return True
    return any(
        text.endswith(stop[:length])
        for stop in ([stops] if isinstance(stops, str) else stops)
        for length in range(1, len(stop))
    )
