"""Reads what a request says about thinking, in any dialect's words, and says it in those of the model's template."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from serve.parsing.families import USUAL, Thinking
from serve.request.completion import MALFORMED, NONE, CompletionRequest, given
from serve.request.patch import BodyPatch

_EFFORT = "reasoning_effort"
_MOONSHOT_THINKING = {"enabled": True, "disabled": False}


class _MoonshotThinking(msgspec.Struct, gc=False):
    type: str | None = None


_moonshot = msgspec.json.Decoder(_MoonshotThinking)


def thinks(request: CompletionRequest, default: bool | None, thinking: Thinking) -> bool:
    """Returns True if the model is to think before it answers, or may.

    `default` is True if the model thinks when the request does not say; None for its template's own choice.
    """
    return thinking.thinks(_arguments(request, thinking), default)


def starts_inside(request: CompletionRequest, default: bool | None, thinking: Thinking) -> bool:
    """Returns True if the model's output starts inside reasoning.

    Arguments are as of `thinks`, with the template's switch set in the request.
    """
    return thinking.starts_inside(_arguments(request, thinking), default)


def set_switch(patch: BodyPatch, request: CompletionRequest, thinking: Thinking) -> None:
    """Sets a template's switch as the request says in an API's words.

    A request that names the template's switch itself keeps its arguments as they are. An effort that the template does
    not know becomes one that it knows.
    """
    effort = request.reasoning_effort
    by_effort = thinking.switch == _EFFORT
    if effort is not None and effort in thinking.efforts:
        known = thinking.efforts[effort]
        if by_effort or known is None:
            patch.drop({_EFFORT})
        else:
            patch.set(_EFFORT, msgspec.json.encode(known))
    arguments = request.chat_template_kwargs or {}
    if thinking.switch is None or any(given(arguments.get(name, NONE)) for name in thinking.switches):
        return
    on, off = thinking.switches[thinking.switch]
    said = _said_elsewhere(request)
    if said is None and effort == "none" and thinking.switch != USUAL.switch:  # vLLM sets the usual one itself
        said = False
    if by_effort and effort is not None and effort in thinking.efforts and said is not False:
        on, said = thinking.efforts[effort], True
    if said is not None:
        patch.set("chat_template_kwargs", msgspec.json.encode({**arguments, thinking.switch: on if said else off}))


def _arguments(request: CompletionRequest, thinking: Thinking) -> Mapping[str, Any]:
    """Returns the arguments by which a template would learn what a request says about thinking."""
    template = request.chat_template_kwargs or {}
    own = {name: _value(template[name]) for name in thinking.switches if given(template.get(name, NONE))}
    if own or thinking.switch is None:
        return own
    said = _said_elsewhere(request)
    if said is None and request.reasoning_effort is not None:
        said = request.reasoning_effort != "none"
    return {} if said is None else {thinking.switch: thinking.switches[thinking.switch][not said]}


def _said_elsewhere(request: CompletionRequest) -> bool | None:
    """Returns what a request says by the switches of other templates, or by Moonshot's own field."""
    template = request.chat_template_kwargs or {}
    said = USUAL.said({name: _value(template[name]) for name in USUAL.switches if given(template.get(name, NONE))})
    if said is not None or request.thinking is NONE:
        return said
    try:
        kind = _moonshot.decode(request.thinking).type
    except MALFORMED:
        return None  # some other API's field of that name
    return _MOONSHOT_THINKING.get(kind or "")


def _value(source: Raw) -> Any:
    """Returns an argument's value; text that msgspec can't read as text."""
    try:
        return msgspec.json.decode(source)
    except MALFORMED:
        return bytes(source)
