"""Headers and body fields that an engine would obey, or that are none of its business, in every spelling.

What is expected of each: it does not reach the engine, and the client has an answer or an error that is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CREDENTIALS = (
    "api-key", "x-api-key", "x-goog-api-key", "x-auth-token", "x-amz-security-token", "x-ms-token-aad-access-token",
    "cf-access-client-secret", "proxy-authorization", "cookie",
)  # fmt: skip
ADDRESSES = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "true-client-ip", "cf-connecting-ip",
    "x-original-url", "x-rewrite-url", "x-http-method-override",
)  # fmt: skip
STEERING = ("x-data-parallel-rank", "x-vllm-priority", "x-vllm-data-parallel-rank", "x-kv-transfer-params", "baggage")

TRANSFER: Mapping[str, Any] = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "203.0.113.7", "remote_port": 1},
    "ec_transfer_params": {"peer": "203.0.113.7"},
    "bootstrap_host": "203.0.113.7",
    "bootstrap_room": 1,
    "session_params": {"id": "conform"},
}
TEMPLATES: Mapping[str, Any] = {
    "chat_template": "{{ 1 }}",
    "logits_processors": ["os.system"],
    "custom_logit_processor": "gASV",
    "lora_path": "/tmp/conform",
    "lora": [{"id": 0, "scale": 0.0}],
    "custom_params": {"conform": [1]},
    "stop_regex": "(a+)+b",
}
TENSORS: Mapping[str, Any] = {
    "prompt_embeds": "AAAA",
    "input_embeds": [[0.0]],
    "media_io_kwargs": {"video": {"num_frames": 1_000_000}},
    "mm_processor_kwargs": {"num_crops": 1_000_000},
    "max_dynamic_patch": 100_000,
    "input_ids": [1, 2, 3],
}
SCHEDULING: Mapping[str, Any] = {
    "priority": -1_000_000,
    "cache_salt": "conform",
    "request_id": "conform",
    "data_parallel_rank": 1,
    "routed_dp_rank": 1,
    "extra_key": "conform",
    "stream_interval": 1_000_000,
    "nvext": {"backend_instance_id": 1, "agent_hints": {"priority": 99}},
    "extra_args": {"priority": 99},
}
URLS = (
    "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/x", "file:///etc/passwd", "HTTP://[::1]/x",
    "ftp://203.0.113.7/x",
)  # fmt: skip
FIELDS: Mapping[str, Any] = {**TRANSFER, **TEMPLATES, **TENSORS, **SCHEDULING}


def escaped(name: str, letters: int | None = None) -> str:
    """Returns a name as JSON may write it, with its first letters, or all of them, escaped."""
    return "".join(f"\\u{ord(letter):04X}" for letter in name[:letters]) + (name[letters:] if letters else "")


# JSON members of which the last one that means the field gives it a value, as a filter could overlook it.
_SPELLINGS: Mapping[str, Callable[[str, str], str]] = {
    "": lambda name, text: f'"{name}": {text}',
    "with an escape": lambda name, text: f'"{escaped(name, 1)}": {text}',
    "twice": lambda name, text: f'"{name}": null, "{name}": {text}',
    "escaped throughout": lambda name, text: f'"{escaped(name)}": {text}',
    "plain, then escaped": lambda name, text: f'"{name}": null, "{escaped(name)}": {text}',
    "escaped, then plain": lambda name, text: f'"{escaped(name)}": null, "{name}": {text}',
    "three times": lambda name, text: f'"{name}": {text}, "{name}": null, "{name}": {text}',
    "behind another member": lambda name, text: f'"inner": {{"{name}": null}}, "{name}" : {text}',
}
SIMPLE: Sequence[str] = ("", "with an escape", "twice")
HARD: Sequence[str] = tuple(name for name in _SPELLINGS if name not in SIMPLE)


def spellings(name: str, text: str, chosen: Sequence[str] = tuple(_SPELLINGS)) -> dict[str, str]:
    """Returns members of a JSON object that all mean one field.

    Args:
        name: The field.
        text: JSON of its value.
        chosen: Names of spellings; all of them if not given.
    """
    return {how: _SPELLINGS[how](name, text) for how in chosen}
