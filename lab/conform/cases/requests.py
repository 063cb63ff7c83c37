"""The client's request reaches the engine unchanged."""

import json
from typing import Any

from lab.conform.case import Case, CaseResult, not_applicable, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab, Trial

_SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}, "mid": {}}}
_FUNCTION = {"name": "look_up", "description": "d", "parameters": _SCHEMA, "strict": True}
_TOOL = {"type": "function", "function": _FUNCTION}


def _arrived(reply: Reply, trial: Trial) -> Any:
    """The engine's JSON, or None with the reason left to `_lost`."""
    return json.loads(trial.arrivals[0].body) if trial.arrivals else None


def _lost(reply: Reply) -> CaseResult:
    return passed_if(False, f"nothing reached the engine; {reply.summary()}")


def _kept(reply: Reply, trial: Trial, sent: dict[str, Any]) -> CaseResult:
    got = _arrived(reply, trial)
    if got is None:
        return _lost(reply)
    wrong = [name for name, value in sent.items() if name not in got or got[name] != value]
    return passed_if(not wrong, f"lost or changed: {', '.join(wrong)}" if wrong else "all arrived")


async def unknown_fields(lab: Lab) -> CaseResult:
    sent: dict[str, Any] = {
        "structured_outputs": {"regex": "a+"},
        "chat_template_kwargs": {"conform_switch": False},
        "min_p": 0.05,
        "x_vendor_field": {"deep": [1, {"er": None}]},
    }
    return _kept(*await lab.ask(**sent), sent)


async def strict(lab: Lab) -> CaseResult:
    reply, trial = await lab.ask(tools=[_TOOL])
    got = _arrived(reply, trial)
    if got is None:
        return _lost(reply)
    function = got["tools"][0]["function"]
    return passed_if(function.get("strict") is True, f"the engine got strict={function.get('strict')!r}")


async def nested_fields(lab: Lab) -> CaseResult:
    trial = lab.trial()
    tool = {**_TOOL, "cache_control": {"type": "ephemeral"}, "function": {**_FUNCTION, "x_vendor": 1}}
    spoken = {"role": "assistant", "content": "so", "reasoning_content": "because", "x_vendor": [1]}
    body = lab.body(trial, tools=[tool])
    body["messages"] += [spoken, {"role": "user", "content": "go on"}]
    reply = await lab.send(body)
    return _kept(reply, trial, {"tools": [tool], "messages": body["messages"]})


async def nothing_added(lab: Lab) -> CaseResult:
    reply, trial = await lab.ask(temperature=0.5)
    got = _arrived(reply, trial)
    if got is None:
        return _lost(reply)
    added = sorted(set(got) - {"model", "messages", "temperature"})
    return passed_if(not added, f"added: {', '.join(added)}" if added else "nothing")


async def numbers(lab: Lab) -> CaseResult:
    sent: dict[str, Any] = {"seed": 9007199254740993, "temperature": 1e-7, "top_p": 1.0, "x_big": 2**70}
    return _kept(*await lab.ask(**sent), sent)


async def text(lab: Lab) -> CaseResult:
    trial = lab.trial()
    content = f'{trial.mark} 你好 🧑‍🚀 é e\u0301 \u2028 \x7f \t "quoted" \\n </tool_call> <|im_end|>'
    messages = [{"role": "user", "content": content}]
    reply = await lab.send({**lab.body(trial), "messages": messages})
    return _kept(reply, trial, {"messages": messages})


async def key_order(lab: Lab) -> CaseResult:
    reply, trial = await lab.ask(tools=[_TOOL])
    got = _arrived(reply, trial)
    if got is None:
        return _lost(reply)
    order = list(got["tools"][0]["function"]["parameters"]["properties"])
    return passed_if(order == ["zeta", "alpha", "mid"], f"the engine got {', '.join(order)}")


async def bytes_kept(lab: Lab) -> CaseResult:
    trial = lab.trial()
    model = json.dumps(lab.model)
    body = (
        f'{{ "model":{model},\n "messages" : [{{"role":"user","content":"{trial.mark} \\u4f60\\/\\u00e9"}}],'
        ' "temperature":1.50,"x":{"a":[ ]} }'
    ).encode()
    reply = await lab.send(body)
    if not trial.arrivals:
        return _lost(reply)
    same = trial.arrivals[0].body == body
    return passed_if(same, "the same bytes" if same else "written again")


async def large(lab: Lab) -> CaseResult:
    trial = lab.trial()
    content = f"{trial.mark} " + "x" * (8 * 2**20)
    reply = await lab.send({**lab.body(trial), "messages": [{"role": "user", "content": content}]})
    if not trial.arrivals or reply.status != 200:
        return passed_if(False, reply.summary())
    whole = content.encode() in trial.arrivals[0].body
    return passed_if(whole, f"{len(trial.arrivals[0].body)} bytes in {reply.seconds:.2f} s")


async def chunked(lab: Lab) -> CaseResult:
    trial = lab.trial()
    body = json.dumps(lab.body(trial)).encode()

    async def pieces() -> Any:
        for start in range(0, len(body), 20):
            yield body[start : start + 20]

    reply = await lab.send(pieces())
    return passed_if(reply.status == 200 and bool(trial.arrivals), reply.summary())


async def completions(lab: Lab) -> CaseResult:
    trial = lab.trial()
    body = {"model": lab.model, "prompt": f"{trial.mark} once", "max_tokens": 4}
    reply = await lab.send(body, path="/v1/completions")
    if reply.status in (404, 405, 501):
        return not_applicable(f"not offered: HTTP {reply.status}")
    path = trial.arrivals[0].path if trial.arrivals else "nothing"
    return passed_if(
        reply.status == 200 and path == "/v1/completions", f"{reply.summary()}; the engine was asked at {path}"
    )


async def models(lab: Lab) -> CaseResult:
    reply = await lab.send(None, method="GET", path="/v1/models")
    listed = reply.json()
    names = [each.get("id") for each in listed.get("data", ())] if isinstance(listed, dict) else []
    return passed_if(reply.status == 200 and lab.model in names, f"HTTP {reply.status}, models {names}")


CASES = (
    Case(
        "unknown-fields",
        "Request fields that the gateway does not know reach the engine unchanged.",
        "vLLM and SGLang take their own fields in the body (`extra_body` of the OpenAI SDK)",
        unknown_fields,
    ),
    Case(
        "strict",
        "`strict` of a function reaches the engine.",
        "OpenAI API, structured outputs; LiteLLM issue 35695: without it, calls are not constrained",
        strict,
    ),
    Case(
        "nested-fields",
        "Unknown fields inside tools and messages (`cache_control`, `reasoning_content`) reach the engine.",
        "Thinking models want the reasoning of earlier turns back",
        nested_fields,
    ),
    Case(
        "nothing-added",
        "The engine gets no field that the client did not send.",
        "Defaults belong to engine and model; an added `logprobs` costs compute",
        nothing_added,
    ),
    Case("numbers", "Numbers keep their values: 2^53+1, 2^70, 1e-7.", "RFC 8259 section 6; seeds are 64 bits", numbers),
    Case("text", "Text arrives as it was sent: CJK, emoji, combining and control characters.", "RFC 8259", text),
    Case(
        "key-order",
        "The properties of a schema keep their order.",
        "Engines render schemas into the prompt and compile grammars in this order; prefix caches need it stable",
        key_order,
    ),
    Case(
        "bytes",
        "The body reaches the engine byte for byte.",
        "Whatever is not parsed and written again can't be lost",
        bytes_kept,
    ),
    Case("body-8mb", "A body of 8 MB is served.", "Images and 100,000-token agent histories", large),
    Case("chunked-request", "A body without Content-Length, in chunks, is served.", "RFC 9112 section 7.1", chunked),
    Case("completions", "`/v1/completions` reaches the engine under the same path.", "OpenAI API", completions),
    Case("models", "`GET /v1/models` lists the model.", "OpenAI API; clients check it at their start", models),
)
