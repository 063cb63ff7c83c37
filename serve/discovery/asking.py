"""Asks an engine, one question after the other where one needs the answer to another."""

import asyncio
import json

from serve.discovery.reading import (
    DIALECTS,
    NO_ANSWER,
    PASSIVE,
    Answers,
    EngineAnswer,
    Question,
    forced,
    min_p,
    read,
    rendered,
    rendering,
)
from serve.http1.client import OWN_FAULTS, fetch

_PASSIVE_TIMEOUT_S = 5.0
_ACTIVE_TIMEOUT_S = 10.0  # for each answer that is generated: a busy engine takes its time, and nobody waits for ever
_ALL_TIMEOUT_S = 20.0  # for all calls that are forced; what was not asked by then is not known
_MAX_ANSWER_BYTES = 4 * 2**20
LATE = "no answer in time"
# What an operating system says of an address that does not answer, and what that means.
_NO_ANSWERS = (
    ("Connect call failed", "nothing listens there; is the engine up, and is this its host and port?"),
    ("Connection refused", "nothing listens there; is the engine up, and is this its host and port?"),
    ("not known", "this machine does not know the host's name"),
    ("ame resolution", "this machine does not know the host's name"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: http:// in place of https://"),
    ("certificate has expired", "its certificate has expired; or is this machine's clock wrong?"),
    ("certificate is not yet valid", "its certificate is not valid yet; or is this machine's clock wrong?"),
    ("certificate is not valid for", "its certificate is for other names than the URL's"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by an authority that this machine trusts; SSL_CERT_FILE names a file with it",
    ),
    ("No route to host", "no way leads to that host from this machine"),
)


async def ask_engine(url: str, key: str | None, active: bool = True) -> Answers:
    """Returns an engine's answers, by the names of the questions. Its base URL has no `/v1`. An active question makes
    it generate some tokens, about a hundred.
    """
    answers = await ask_passively(url, key)
    names = read(answers).get("served_names")
    if names is None:
        return answers
    model = str(names.value[0])
    answers |= await _rendering(url, key, model)
    return answers | await _behaviour(url, key, model, answers) if active else answers


async def ask_passively(url: str, key: str | None) -> dict[str, EngineAnswer]:
    """Returns an engine's answers to what costs it nothing."""
    found = await asyncio.gather(*(_ask(url, key, question, _PASSIVE_TIMEOUT_S) for question in PASSIVE.values()))
    return dict(zip(PASSIVE, found, strict=True))


async def ask_metrics(url: str, key: str | None) -> EngineAnswer:
    return await _ask(url, key, PASSIVE["metrics"], _PASSIVE_TIMEOUT_S)


def why_no_answer(error: str) -> str:
    """Returns what an error of the network says of an engine, and what to do."""
    return next((told for mark, told in _NO_ANSWERS if mark in error), f"it does not answer ({error})")


async def _rendering(url: str, key: str | None, model: str) -> dict[str, EngineAnswer]:
    tokenized = await _ask(url, key, rendering(model), _PASSIVE_TIMEOUT_S)
    tokens = tokenized.document.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return {"tokenized": tokenized}
    return {"tokenized": tokenized, "rendered": await _ask(url, key, rendered(model, tokens), _PASSIVE_TIMEOUT_S)}


async def _behaviour(url: str, key: str | None, model: str, so_far: Answers) -> dict[str, EngineAnswer]:
    """Returns how an engine behaves; vLLM's ways alone are known."""
    engine = read(so_far).get("engine")
    if engine is None or engine.value != "vllm":
        return {}
    answers = {"min_p": await _ask(url, key, min_p(model), _ACTIVE_TIMEOUT_S)}
    grammar = read(so_far).get("grammar")
    first = grammar.value if grammar is not None else ""
    deadline_s = asyncio.get_running_loop().time() + _ALL_TIMEOUT_S
    for dialect in sorted(DIALECTS, key=lambda each: each != first):
        left_s = min(deadline_s - asyncio.get_running_loop().time(), _ACTIVE_TIMEOUT_S)
        if left_s <= 0:
            break
        answers[f"forced:{dialect}"] = await _ask(url, key, forced(model, dialect), left_s)
        if "tool_parser" in read(answers):
            break
    return answers


async def _ask(url: str, key: str | None, question: Question, timeout_s: float) -> EngineAnswer:
    body = b"" if question.body is None else json.dumps(question.body).encode()
    kind = [(b"content-type", b"application/json")] if body else []
    try:
        answer = await fetch(
            url, key, "POST" if body else "GET", question.path, body, kind, timeout_s, _MAX_ANSWER_BYTES
        )
    except TimeoutError:
        return EngineAnswer(NO_ANSWER.status, error=LATE)
    except OSError as error:
        if error.errno in OWN_FAULTS:
            return EngineAnswer(NO_ANSWER.status, error=LATE)
        return EngineAnswer(NO_ANSWER.status, error=str(error) or type(error).__name__)
    return EngineAnswer(answer.status, answer.body)
