"""`POST /v1/messages/count_tokens`: counted by an engine, or estimated where none can."""

from collections.abc import Mapping
from typing import Any

import msgspec

from serve.dialects.answer import estimated_tokens
from serve.dialects.body import read_object, within_depth, written
from serve.dialects.dialect import Identity, Translated
from serve.dialects.messages.request import MessagesMemo, chat_body
from serve.errors import EngineError

# vLLM's route; other servers answer it with an error.
TOKENIZE_PATH = "/tokenize"

_COUNTED = ("model", "messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


@within_depth()
def decode_count(body: bytes) -> Translated:
    """Translates a body to that of vLLM's `/tokenize`.

    Raises:
        InvalidRequestError: The body can't be translated.
    """
    dropped: list[str] = []
    chat = chat_body(read_object(body), dropped)
    encoded = written({name: chat[name] for name in _COUNTED if name in chat}, len(body))
    return Translated(encoded, False, MessagesMemo(estimated_tokens(chat["messages"], len(encoded))), tuple(dropped))


def encode_count(answer: Mapping[str, Any], memo: MessagesMemo, identity: Identity) -> bytes:
    """Returns the count that an engine has given.

    Raises:
        EngineError: It has given none.
    """
    count = answer.get("count")
    if not isinstance(count, int) or count < 1:
        raise EngineError("The engine did not count the tokens.")
    return msgspec.json.encode({"input_tokens": count})


def estimate_count(memo: MessagesMemo) -> bytes:
    """Returns a count by the prompt's size."""
    return msgspec.json.encode({"input_tokens": memo.prompt_tokens})
