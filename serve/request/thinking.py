"""Reads what a request says about thinking, in any dialect's words."""

import msgspec

from serve.request.completion import NONE, CompletionRequest, given
from serve.request.patch import BodyPatch

# The switch of most chat templates. vLLM sets it itself if `reasoning_effort` is `none`, and no other one.
USUAL_SWITCH = "enable_thinking"
_OTHER_SWITCH = {"thinking": "enable_thinking", "enable_thinking": "thinking"}
_FALSE = frozenset({b"false", b"0", b'""'})
_MOONSHOT_THINKING = {"enabled": True, "disabled": False}


class _MoonshotThinking(msgspec.Struct, gc=False):
    type: str | None = None


_moonshot = msgspec.json.Decoder(_MoonshotThinking)


def thinks(request: CompletionRequest, default: bool, switch: str) -> bool:
    """Returns True if the model is to think before it answers.

    Args:
        request: The parsed body.
        default: True if the model thinks when the request does not say.
        switch: The argument by which the model's chat template turns thinking on or off.
    """
    said = _said_of_thinking(request, switch)
    if said is not None:
        return said
    if request.reasoning_effort is not None:
        return request.reasoning_effort != "none"
    return default


def set_switch(patch: BodyPatch, request: CompletionRequest, switch: str) -> None:
    """Sets a template's switch as the request says in an API's words.

    A request that names a switch itself keeps its arguments as they are: only it knows for which template it speaks.

    Args:
        patch: Of the body.
        request: The body, parsed.
        switch: The argument by which the model's chat template turns thinking on or off.
    """
    arguments = request.chat_template_kwargs or {}
    if given(arguments.get(switch, NONE)) or given(arguments.get(_OTHER_SWITCH[switch], NONE)):
        return
    said = _said_of_thinking(request, switch)
    if said is None and request.reasoning_effort == "none" and switch != USUAL_SWITCH:
        said = False
    if said is not None:
        patch.set("chat_template_kwargs", msgspec.json.encode({**arguments, switch: said}))


def _said_of_thinking(request: CompletionRequest, switch: str) -> bool | None:
    """Returns what the request says by a switch: the template's, that of other templates, or Moonshot's own field."""
    template = request.chat_template_kwargs
    if template is not None:
        for value in (template.get(switch, NONE), template.get(_OTHER_SWITCH[switch], NONE)):
            if given(value):
                return bytes(value) not in _FALSE
    if request.thinking is NONE:
        return None
    try:
        kind = _moonshot.decode(request.thinking).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # some other API's field of that name
    return _MOONSHOT_THINKING.get(kind or "")
