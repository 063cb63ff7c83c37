"""Bodies that two JSON readers read differently. What counts is what the engine reads: the last of equal names."""

import asyncio
import json

from lab.attacks.fields import FIELDS, HARD, escaped, spellings
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.cases.security.leaks import holds_field
from lab.conform.lab import Lab

_OTHER = "conform-other-model"
_FIELDS = ("kv_transfer_params", "chat_template", "prompt_embeds", "priority", "cache_salt")


async def fields(lab: Lab) -> CaseResult:
    async def one(name: str, member: str) -> str:
        trial = lab.trial()
        reply = await lab.send(f"{json.dumps(lab.body(trial))[:-1]}, {member}}}".encode())
        if any(holds_field(arrival.body, name) for arrival in trial.arrivals):
            return "passed on"
        return "" if 200 <= reply.status < 500 else reply.summary()

    tried = [
        (name, how, member)
        for name in _FIELDS
        for how, member in spellings(name, json.dumps(FIELDS[name]), HARD).items()
    ]
    seen = await asyncio.gather(*(one(name, member) for name, _, member in tried))
    wrong = [f"{name}, {how}: {what}" for (name, how, _), what in zip(tried, seen, strict=True) if what]
    return passed_if(not wrong, "; ".join(wrong) if wrong else f"none of {len(tried)} passed on")


async def model(lab: Lab) -> CaseResult:
    """A gateway that takes the first of two names for the model has chosen for another one than the engine reads."""

    async def one(member: str) -> bool:
        trial = lab.trial()
        await lab.send(f"{json.dumps(lab.body(trial))[:-1]}, {member}}}".encode())
        return any(json.loads(arrival.body).get("model") == _OTHER for arrival in trial.arrivals)

    members = {
        "twice": f'"model": "{_OTHER}"',
        "escaped": f'"{escaped("model")}": "{_OTHER}"',
        "three times": f'"model": {json.dumps(lab.model)}, "model": "{_OTHER}"',
    }
    seen = await asyncio.gather(*map(one, members.values()))
    wrong = [how for how, passed in zip(members, seen, strict=True) if passed]
    return passed_if(not wrong, f"passed on: {', '.join(wrong)}" if wrong else f"none of {len(members)} passed on")


_SOURCE = "RFC 8259 section 4: names that are not unique"

CASES = (
    Case("field-spellings", "No field that an engine obeys passes because it is escaped or stands there twice.",
         _SOURCE, fields),
    Case("model-twice", "Nor does a second `model` that the gateway has not read.", _SOURCE, model),
)  # fmt: skip
