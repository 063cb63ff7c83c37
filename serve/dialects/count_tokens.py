"""The routes that count a request's tokens: counted by an engine, or estimated where none can."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from serve.dialects.body import written
from serve.dialects.dialect import Dialect, Identity, Translated
from serve.errors import EngineError

# vLLM's route; other servers answer it with an error.
_TOKENIZE_PATH = "/tokenize"
_COUNTED = ("model", "messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


def counting(api: Dialect, name: str, decode: Callable[[bytes], Translated], **said: str) -> Dialect:
    """Returns the dialect of the route that counts the tokens of an API's requests.

    Args:
        api: Whose errors and headers it has.
        name: Of the dialect.
        decode: Translates a body to that of vLLM's `/tokenize`; its memo has an estimate, `prompt_tokens`.
        said: Members of the answer beside the count.
    """

    def encoded(count: int) -> bytes:
        return msgspec.json.encode({**said, "input_tokens": count})

    def encode_count(answer: Mapping[str, Any], memo: Any, identity: Identity) -> bytes:
        count = answer.get("count")
        if not isinstance(count, int) or count < 1:
            raise EngineError("The engine did not count the tokens.")
        return encoded(count)

    def estimate(memo: Any) -> bytes:
        return encoded(memo.prompt_tokens)

    return replace(
        api, name=name, decode=decode, encode_whole=encode_count, engine_path=_TOKENIZE_PATH, estimate=estimate
    )


def counted(chat: Mapping[str, Any], size_bytes: int) -> bytes:
    """Returns what of a chat body is part of the prompt, as JSON; `size_bytes` is as of `written`."""
    return written({name: chat[name] for name in _COUNTED if name in chat}, size_bytes)
