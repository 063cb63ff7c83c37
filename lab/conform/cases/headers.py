"""Headers in both directions: those that must pass, and those that must not."""

from lab.conform.case import Case, CaseResult, not_applicable, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab, Trial
from lab.scripted import scripts

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_EVERYWHERE = frozenset({"x-request-id", "x-content-type-options", "x-frame-options", "x-xss-protection"})


async def _with(lab: Lab, headers: dict[str, str]) -> tuple[Reply, Trial]:
    trial = lab.trial()
    return await lab.send(lab.body(trial), headers), trial


async def _absent(lab: Lab, name: str, value: str, sent: dict[str, str] | None = None) -> CaseResult:
    """The engine must not see `value` in the header `name`."""
    reply, trial = await _with(lab, {name: value} if sent is None else sent)
    if not trial.arrivals:
        return passed_if(False, f"nothing reached the engine; {reply.summary()}")
    got = trial.arrivals[0].header(name)
    return passed_if(
        value not in (got or ""), "not passed on" if value not in (got or "") else f"the engine got {got!r}"
    )


async def request_id_out(lab: Lab) -> CaseResult:
    reply, _ = await _with(lab, {"x-request-id": "conform-id-2"})
    got = [value for name, value in reply.headers if name == "x-request-id"]
    return passed_if(got == ["conform-id-2"], f"the client got {got}")


async def trace(lab: Lab) -> CaseResult:
    reply, trial = await _with(lab, {"traceparent": f"00-{_TRACE}-b7ad6b7169203331-01"})
    got = (trial.arrivals[0].header("traceparent") if trial.arrivals else reply.summary()) or "none"
    return passed_if(_TRACE in got, f"the engine got {got}")


async def authorization(lab: Lab) -> CaseResult:
    token = lab.key or "conform-client-secret"
    return await _absent(lab, "authorization", token, {"authorization": f"Bearer {token}"})


async def cookie(lab: Lab) -> CaseResult:
    return await _absent(lab, "cookie", "session=secret")


async def forwarded(lab: Lab) -> CaseResult:
    return await _absent(lab, "x-forwarded-for", "203.0.113.7")


async def hop_by_hop(lab: Lab) -> CaseResult:
    sent = {"connection": "close, x-hop", "x-hop": "secret", "proxy-authorization": "Basic secret"}
    reply, trial = await _with(lab, sent)
    if not trial.arrivals:
        return passed_if(False, f"nothing reached the engine; {reply.summary()}")
    passed = [name for name in ("x-hop", "proxy-authorization") if trial.arrivals[0].header(name)]
    return passed_if(not passed, f"passed on: {', '.join(passed)}" if passed else "not passed on")


async def own_headers(lab: Lab) -> CaseResult:
    """Whatever the gateway says of itself in answers, a client could say to the engine or to the gateway."""
    answered, _ = await lab.ask()
    own = sorted({name for name, _ in answered.headers if name.startswith("x-")} - _EVERYWHERE)
    if not own:
        return not_applicable("the gateway adds no headers of its own")
    reply, trial = await _with(lab, dict.fromkeys(own, "conform-forged"))
    if not trial.arrivals:
        return passed_if(False, f"nothing reached the engine; {reply.summary()}")
    arrived = [name for name in own if "conform-forged" in (trial.arrivals[0].header(name) or "")]
    echoed = [name for name, value in reply.headers if value == "conform-forged"]
    seen = f"forged {', '.join(own)}"
    seen += f"; the engine got {', '.join(arrived)}" if arrived else ""
    seen += f"; the client got back {', '.join(echoed)}" if echoed else ""
    return passed_if(not arrived and not echoed, seen)


async def set_cookie(lab: Lab) -> CaseResult:
    script = scripts.answering(scripts.whole({"content": "x"}), headers={"set-cookie": "engine=1; Path=/"})
    reply, _ = await lab.ask(script)
    got = reply.header("set-cookie")
    return passed_if(got is None or "engine=1" not in got, f"the client got {got!r}")


async def limits_told(lab: Lab) -> CaseResult:
    said = {"x-ratelimit-remaining-tokens": "77", "openai-processing-ms": "12"}
    reply, _ = await lab.ask(scripts.answering(scripts.whole({"content": "x"}), headers=said))
    lost = [name for name, value in said.items() if reply.header(name) != value]
    return passed_if(not lost, f"lost: {', '.join(lost)}" if lost else "both arrived")


async def address(lab: Lab) -> CaseResult:
    """In good answers and in bad ones."""
    replies = [
        (await lab.ask(script))[0] for script in (None, scripts.answering(scripts.error("x", 500), 500), scripts.crash)
    ]
    where = f":{lab.engine.port}"
    leaks = [name for reply in replies for name, value in reply.headers if where in value]
    leaks += ["the body of an error" for reply in replies if where.encode() in reply.body]
    return passed_if(not leaks, f"told in {', '.join(sorted(set(leaks)))}" if leaks else "not told")


CASES = (
    Case("request-id-out", "The answer carries the client's `x-request-id`, once.", "OpenAI API", request_id_out),
    Case("traceparent", "The trace of the client goes on in the engine.", "W3C Trace Context, section 3", trace),
    Case(
        "authorization",
        "The client's token stays at the gateway.",
        "It is the gateway's credential, not the engine's; RFC 9110 section 16.3 lets a gateway replace it",
        authorization,
    ),
    Case(
        "cookie", "Cookies of the client do not reach the engine.", "Nothing behind a gateway has use for them", cookie
    ),
    Case(
        "forwarded-for",
        "An `x-forwarded-for` that the client made up does not reach the engine.",
        "RFC 7239 section 8.1",
        forwarded,
    ),
    Case(
        "hop-by-hop",
        "Headers named by `Connection`, and `Proxy-Authorization`, are not passed on.",
        "RFC 9110 section 7.6.1",
        hop_by_hop,
    ),
    Case(
        "own-headers",
        "Headers in which the gateway speaks can't be forged by a client.",
        "An answer must not say what the client put into its mouth",
        own_headers,
    ),
    Case("set-cookie", "Cookies of an engine do not reach the client.", "They would go to every engine", set_cookie),
    Case("engine-headers", "Rate-limit and timing headers of the engine reach the client.", "OpenAI API", limits_told),
    Case(
        "address",
        "Neither headers nor error bodies tell the client an engine's address.",
        "Network maps are for those who attack them",
        address,
    ),
)
