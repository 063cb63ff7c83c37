"""Headers and body fields that an engine would obey, or that are none of its business."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab, Trial

_SECRET = "conform-secret"

_CREDENTIALS = (
    "api-key", "x-api-key", "x-goog-api-key", "x-auth-token", "x-amz-security-token", "x-ms-token-aad-access-token",
    "cf-access-client-secret", "proxy-authorization", "cookie",
)  # fmt: skip
_ADDRESSES = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "true-client-ip", "cf-connecting-ip",
    "x-original-url", "x-rewrite-url", "x-http-method-override",
)  # fmt: skip
_STEERING = ("x-data-parallel-rank", "x-vllm-priority", "x-vllm-data-parallel-rank", "x-kv-transfer-params", "baggage")

_TRANSFER: Mapping[str, Any] = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "203.0.113.7", "remote_port": 1},
    "ec_transfer_params": {"peer": "203.0.113.7"},
    "bootstrap_host": "203.0.113.7",
    "bootstrap_room": 1,
}
_TEMPLATES: Mapping[str, Any] = {
    "chat_template": "{{ 1 }}",
    "logits_processors": ["os.system"],
    "custom_logit_processor": "gASV",
    "lora_path": "/tmp/conform",
}
_TENSORS: Mapping[str, Any] = {
    "prompt_embeds": "AAAA",
    "input_embeds": [[0.0]],
    "media_io_kwargs": {"video": {"num_frames": 1_000_000}},
    "mm_processor_kwargs": {"num_crops": 1_000_000},
}
_SCHEDULING: Mapping[str, Any] = {
    "priority": -1_000_000,
    "cache_salt": "conform",
    "request_id": "conform",
    "data_parallel_rank": 1,
}
_URLS = (
    "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/x", "file:///etc/passwd", "HTTP://[::1]/x",
    "ftp://203.0.113.7/x",
)  # fmt: skip


async def _headers_kept(lab: Lab, names: Sequence[str]) -> CaseResult:
    trial = lab.trial()
    reply = await lab.send(lab.body(trial), dict.fromkeys(names, _SECRET))
    leaked = {name for arrival in trial.arrivals for name, value in arrival.headers if _SECRET in value}
    if leaked:
        return passed_if(False, f"the engine got {', '.join(sorted(leaked))}")
    good = bool(trial.arrivals) or 400 <= reply.status < 500
    return passed_if(good, f"none of {len(names)} passed on; {reply.summary()}")


def _spellings(name: str, value: Any) -> dict[str, str]:
    """Returns members of a JSON object that all mean one field, as a filter could overlook it."""
    text = json.dumps(value)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name[:1]) + name[1:]
    return {
        "": f'"{name}": {text}',
        " with an escape": f'"{escaped}": {text}',
        " twice": f'"{name}": null, "{name}": {text}',
    }


def holds_field(body: bytes, name: str) -> bool:
    """True if a JSON body gives a field a value, as engines read it: of two, the last one counts."""
    return json.loads(body).get(name) is not None


async def _one_field(lab: Lab, name: str, member: str) -> tuple[bool, Reply]:
    trial = lab.trial()
    reply = await lab.send(f"{json.dumps(lab.body(trial))[:-1]}, {member}}}".encode())
    return any(holds_field(arrival.body, name) for arrival in trial.arrivals), reply


async def _fields_kept(lab: Lab, fields: Mapping[str, Any]) -> CaseResult:
    tried = [(name, how, text) for name, value in fields.items() for how, text in _spellings(name, value).items()]
    outcomes = await asyncio.gather(*(_one_field(lab, name, text) for name, _, text in tried))
    wrong = [name + how for (name, how, _), (leaked, _) in zip(tried, outcomes, strict=True) if leaked]
    wrong += [
        f"{name}{how}: {reply.summary()}"
        for (name, how, _), (_, reply) in zip(tried, outcomes, strict=True)
        if not 200 <= reply.status < 500
    ]
    return passed_if(not wrong, f"passed on: {', '.join(wrong)}" if wrong else f"none of {len(tried)} passed on")


async def media_urls(lab: Lab) -> CaseResult:
    async def one(url: str) -> Trial:
        trial = lab.trial()
        parts = [{"type": "text", "text": trial.mark}, {"type": "image_url", "image_url": {"url": url}}]
        await lab.send({**lab.body(trial), "messages": [{"role": "user", "content": parts}]})
        return trial

    trials = await asyncio.gather(*map(one, _URLS))
    passed = [
        url
        for url, trial in zip(_URLS, trials, strict=True)
        if any(url.encode() in arrival.body for arrival in trial.arrivals)
    ]
    return passed_if(not passed, f"passed on: {', '.join(passed)}" if passed else f"none of {len(_URLS)} passed on")


async def template_arguments(lab: Lab) -> CaseResult:
    reply, trial = await lab.ask(chat_template_kwargs={"chat_template": _SECRET, "tokenize": True})
    passed = any(_SECRET.encode() in arrival.body for arrival in trial.arrivals)
    return passed_if(not passed, f"{'passed on' if passed else 'not passed on'}; {reply.summary()}")


def _headers(names: Sequence[str]) -> Callable[[Lab], Awaitable[CaseResult]]:
    return lambda lab: _headers_kept(lab, names)


def _fields(fields: Mapping[str, Any]) -> Callable[[Lab], Awaitable[CaseResult]]:
    return lambda lab: _fields_kept(lab, fields)


_HEADERS = "A gateway passes on listed headers, or sooner or later a secret"
_FIELDS = "vLLM and SGLang trust whoever sends a request"

CASES = (
    Case("leak-credentials", "Credentials under any vendor's name do not reach the engine.", _HEADERS,
         _headers(_CREDENTIALS)),
    Case("leak-addresses", "Nor do addresses and routes that the client made up.", _HEADERS, _headers(_ADDRESSES)),
    Case("leak-steering", "Nor do headers that engines obey, nor `baggage`.", _HEADERS, _headers(_STEERING)),
    Case("field-transfer", "Fields that name hosts to fetch caches from are refused or taken out.", _FIELDS,
         _fields(_TRANSFER)),
    Case("field-templates", "So are fields that hold code, templates or paths.", _FIELDS, _fields(_TEMPLATES)),
    Case("field-tensors", "So are embeddings and arguments of media decoders.", _FIELDS, _fields(_TENSORS)),
    Case("field-scheduling", "So are a priority, cache salt, request id or rank.", _FIELDS, _fields(_SCHEDULING)),
    Case("template-arguments", "`chat_template_kwargs` does not replace the template.", _FIELDS, template_arguments),
    Case("media-urls", "Media URLs of internal hosts and files do not reach the engine.",
         "Server-side request forgery, CWE-918", media_urls),
)  # fmt: skip
