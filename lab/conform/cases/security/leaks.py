"""Headers and body fields that an engine would obey, or that are none of its business."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lab.attacks.fields import (
    ADDRESSES,
    CREDENTIALS,
    SCHEDULING,
    SIMPLE,
    STEERING,
    TEMPLATES,
    TENSORS,
    TRANSFER,
    URLS,
    spellings,
)
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab, Trial

_SECRET = "conform-secret"


async def _headers_kept(lab: Lab, names: Sequence[str]) -> CaseResult:
    trial = lab.trial()
    reply = await lab.send(lab.body(trial), dict.fromkeys(names, _SECRET))
    leaked = {name for arrival in trial.arrivals for name, value in arrival.headers if _SECRET in value}
    if leaked:
        return passed_if(False, f"the engine got {', '.join(sorted(leaked))}")
    good = bool(trial.arrivals) or 400 <= reply.status < 500
    return passed_if(good, f"none of {len(names)} passed on; {reply.summary()}")


def holds_field(body: bytes, name: str) -> bool:
    """True if a JSON body gives a field a value, as engines read it: of two, the last one counts."""
    return json.loads(body).get(name) is not None


async def _one_field(lab: Lab, name: str, member: str) -> tuple[bool, Reply]:
    trial = lab.trial()
    reply = await lab.send(f"{json.dumps(lab.body(trial))[:-1]}, {member}}}".encode())
    return any(holds_field(arrival.body, name) for arrival in trial.arrivals), reply


async def _fields_kept(lab: Lab, fields: Mapping[str, Any]) -> CaseResult:
    tried = [
        (name, how, text)
        for name, value in fields.items()
        for how, text in spellings(name, json.dumps(value), SIMPLE).items()
    ]
    outcomes = await asyncio.gather(*(_one_field(lab, name, text) for name, _, text in tried))
    wrong = [f"{name} {how}".strip() for (name, how, _), (leaked, _) in zip(tried, outcomes, strict=True) if leaked]
    wrong += [
        f"{name} {how}".strip() + f": {reply.summary()}"
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

    trials = await asyncio.gather(*map(one, URLS))
    passed = [
        url
        for url, trial in zip(URLS, trials, strict=True)
        if any(url.encode() in arrival.body for arrival in trial.arrivals)
    ]
    return passed_if(not passed, f"passed on: {', '.join(passed)}" if passed else f"none of {len(URLS)} passed on")


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
         _headers(CREDENTIALS)),
    Case("leak-addresses", "Nor do addresses and routes that the client made up.", _HEADERS, _headers(ADDRESSES)),
    Case("leak-steering", "Nor do headers that engines obey, nor `baggage`.", _HEADERS, _headers(STEERING)),
    Case("field-transfer", "Fields that name hosts to fetch caches from are refused or taken out.", _FIELDS,
         _fields(TRANSFER)),
    Case("field-templates", "So are fields that hold code, templates or paths.", _FIELDS, _fields(TEMPLATES)),
    Case("field-tensors", "So are embeddings and arguments of media decoders.", _FIELDS, _fields(TENSORS)),
    Case("field-scheduling", "So are a priority, cache salt, request id or rank.", _FIELDS, _fields(SCHEDULING)),
    Case("template-arguments", "`chat_template_kwargs` does not replace the template.", _FIELDS, template_arguments),
    Case("media-urls", "Media URLs of internal hosts and files do not reach the engine.",
         "Server-side request forgery, CWE-918", media_urls),
)  # fmt: skip
