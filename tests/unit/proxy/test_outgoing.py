"""What an engine gets of a request, by what its pool wants."""

import json
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from policies import Candidate, Decision, PoolFacts, RequestFeatures
from serve.config.gateway import GatewayConfig
from serve.errors import InvalidRequestError
from serve.proxy.outgoing import OutgoingRequests
from serve.proxy.routed_request import Attribution, RoutedRequest
from serve.request.completion import parse
from serve.request.patch import BodyPatch, wants_usage
from serve.routing.pool import SLOT_HEADER, Endpoint

ENGINE = {"kind": "vllm"}
REMOTE = {"kind": "remote", "url": "http://unused", "facts": {"method": "none"}}


def pools(pool: dict[str, Any], *, reports: bool = False, guard: str = "heal") -> OutgoingRequests:
    model = {"family": "qwen3", "grammar": "hermes", "guard": {"mode": guard}, "pools": {"p": pool}}
    return OutgoingRequests(GatewayConfig.parse({"models": {"m": model}}), reports=reports)


def request(*, guarded: bool = False, **members: Any) -> RoutedRequest:
    body = json.dumps({"model": "m", "messages": [], **members}).encode()
    features = RequestFeatures("m", stream=bool(members.get("stream")))
    decision = Decision("m", ())
    return RoutedRequest(
        path="/p",
        headers={"accept": "*/*", "authorization": "Bearer theirs", "x-secret": "1"},
        request_id="r",
        body=body,
        patch=BodyPatch(),
        parsed=parse(body),
        features=features,
        decision=decision,
        guarded=guarded,
        attempt_numbers=count(1),
        attribution=Attribution(engine_id="e"),
        wants_usage=wants_usage(parse(body)),
    )


def sent(pools: OutgoingRequests, asked: RoutedRequest, *, opt_out: bool = False, speculative: bool = False) -> bytes:
    candidate = Candidate("p", opt_out=opt_out, speculative=speculative)
    return pools.outgoing(asked, candidate).patch.apply(asked.body)


def passed(pools: OutgoingRequests, asked: RoutedRequest, body: bytes) -> bytes:
    """Returns what is left of a whole answer behind the stages of an attempt."""
    for stage in pools.outgoing(asked, Candidate("p", opt_out=False, speculative=False)).stages:
        body = stage.whole(body)
    return body


def test_a_plain_request_reaches_an_engine_as_the_very_same_bytes() -> None:
    asked = request()
    assert sent(pools(ENGINE), asked) is asked.body
    assert sent(pools(REMOTE), asked) is asked.body


@pytest.mark.parametrize(("engine", "is_once"), [("vllm", False), ("ovms", True), (None, True)])
def test_an_engine_that_may_take_the_first_of_two_members_gets_the_one_that_was_checked(
    engine: str | None, is_once: bool
) -> None:
    there, asked = pools(REMOTE), request()
    there.adopt([PoolFacts("m", "p", engine=engine)])
    twice = b'{"model":"other","model":"m","lora_path":"evil","lora_path":null,"messages":[]}'
    once = b'{"model":"m","lora_path":null,"messages":[]}'
    assert sent(there, replace(asked, body=twice, parsed=parse(twice))) == (once if is_once else twice)


@pytest.mark.parametrize(
    ("where", "hidden", "read"),
    [
        ("messages", '[{"content":[{"image_url":{"url":"http://a"}}],"content":"x"}]', '[{"content":"x"}]'),
        ("messages", '[{"content":[{"a_url":"b","a_url":"data:"}]}]', '[{"content":[{"a_url":"data:"}]}]'),
        ("chat_template_kwargs", '{"chat_template":"{{x}}","chat_template":1}', '{"chat_template":1}'),
        ("structured_outputs", '{"json":{"type":"object","type":"array"}}', '{"json":{"type":"array"}}'),
        ("chat_template_kwargs", '{"a":1e2,"a":-0.0,"b":12345678901234567890}', '{"a":-0.0,"b":12345678901234567890}'),
        ("messages", '[{"content":[{"\\u0075rl":1,"url":2}]}]', '[{"content":[{"url":2}]}]'),
        ("messages", '[ {"content": "no media"} ]', '[ {"content": "no media"} ]'),
        ("prompt", "[[1,2],[3]]", "[[1,2],[3]]"),
    ],
)  # fmt: skip
def test_no_object_that_is_judged_has_a_name_twice_for_an_engine_that_may_take_the_first(
    where: str, hidden: str, read: str
) -> None:
    there, asked = pools(REMOTE), request()
    there.adopt([PoolFacts("m", "p")])
    body = f'{{"model":"m","{where}":{hidden}}}'.encode()
    assert sent(there, replace(asked, body=body)) == f'{{"model":"m","{where}":{read}}}'.encode()


@pytest.mark.parametrize(
    ("asked_for", "read"),
    [
        ({"content": "x", "Content": [{"image_url": "http://a"}]}, {"content": "x"}),
        ({"content": [{"image_url": "data:", "Image_URL": "http://a"}]}, {"content": [{"image_url": "data:"}]}),
        ({"content": [{"type": "a_url", "imageUrl": {"url": "b"}}]}, {"content": [{"type": "a_url"}]}),
        ({"content": [{"image_url": {"url": "data:", "URL": "a"}}]}, {"content": [{"image_url": {"url": "data:"}}]}),
        ({"content": ["URL"], "name": "URL", "tool_call_id": "URL"}, None),
        ("URL", None),
    ],
)
def test_nothing_in_a_message_looks_like_a_content_or_a_url_to_an_engine_that_may_not_be_strict(
    asked_for: Any, read: Any
) -> None:
    there, asked = pools(REMOTE), request()
    there.adopt([PoolFacts("m", "p")])
    tools = [{"function": {"parameters": {"properties": {"URL": {"Type": 1}}}}}]
    body = json.dumps({"model": "m", "messages": [asked_for], "tools": tools}).encode()
    got = json.loads(sent(there, replace(asked, body=body)))
    assert got == {"model": "m", "messages": [read or asked_for], "tools": tools}


def test_a_body_of_more_values_than_can_be_rewritten_reaches_no_engine_that_may_take_the_first_of_two_names() -> None:
    there, asked = pools(REMOTE), request()
    there.adopt([PoolFacts("m", "p")])
    body = b'{"model":"m","messages":[{"role":"user","content":[' + b"1," * 300_000 + b'"a_url"]}]}'
    with pytest.raises(InvalidRequestError, match="values"):
        sent(there, replace(asked, body=body))


def test_a_remote_engine_gets_its_own_name_and_answers_under_ours() -> None:
    there = pools({**REMOTE, "served_name": "theirs"})
    asked = request()
    assert json.loads(sent(there, asked))["model"] == "theirs"
    assert passed(there, asked, b'{"model":"theirs"}') == b'{"model":"m"}'
    assert passed(pools(REMOTE), asked, b'{"model":"theirs"}') == b'{"model":"theirs"}'


def test_reasoning_has_the_name_that_the_pool_reads() -> None:
    asked = request(messages=[{"role": "assistant", "reasoning": "hm"}])
    there = pools({**REMOTE, "reasoning_field": "reasoning_content"})
    assert json.loads(sent(there, asked))["messages"] == [{"role": "assistant", "reasoning_content": "hm"}]


@pytest.mark.parametrize(
    ("pool", "guarded", "opt_out", "xargs"),
    [
        (ENGINE, False, True, {"enable_speculative": 0}),
        (ENGINE, True, False, {"specgate_violations": 1}),
        (ENGINE, True, True, {"enable_speculative": 0, "specgate_violations": 1}),
        (REMOTE, True, False, None),
    ],
)
def test_only_engines_of_ours_are_told_what_only_they_know(
    pool: dict[str, Any], guarded: bool, opt_out: bool, xargs: dict[str, int] | None
) -> None:
    assert json.loads(sent(pools(pool), request(guarded=guarded), opt_out=opt_out)).get("vllm_xargs") == xargs


@pytest.mark.parametrize(
    ("pool", "guard", "speculative", "members", "asks"),
    [
        (ENGINE, "heal", True, {"stream": True}, True),
        (ENGINE, "observe", True, {"stream": True}, False),
        (ENGINE, "heal", False, {"stream": True}, False),
        (ENGINE, "heal", True, {}, False),
        (REMOTE, "heal", True, {"stream": True}, False),
        (ENGINE, "heal", True, {"stream": True, "stream_options": {"include_usage": False}}, False),
    ],
)
def test_a_report_is_asked_for_only_where_a_guard_may_change_the_answer(
    pool: dict[str, Any], guard: str, speculative: bool, members: dict[str, Any], asks: bool
) -> None:
    asked = request(guarded=True, **members)
    there = pools(pool, reports=True, guard=guard)
    options = json.loads(sent(there, asked, speculative=speculative)).get("stream_options")
    assert (options == {"include_usage": True}) is asks


def test_one_attempt_does_not_change_what_another_sends() -> None:
    there, asked = pools({**REMOTE, "served_name": "theirs"}), request()
    assert sent(there, asked) == sent(there, asked)
    assert not asked.patch


def test_each_attempt_has_an_id_of_its_own_and_no_credentials_of_the_client() -> None:
    there, asked = pools(REMOTE), request()
    first = there.headers(asked, Endpoint("http://one", "key", slot="s1"), 1)
    second = there.headers(asked, Endpoint("http://two", None), 2)
    assert (first["x-request-id"], second["x-request-id"]) == ("e-1", "e-2")
    assert (first["authorization"], first[SLOT_HEADER]) == ("Bearer key", "s1")
    assert not {"authorization", SLOT_HEADER, "x-secret"} & second.keys()


def test_what_an_engine_tells_of_its_drafts_stays_with_whoever_may_see_it() -> None:
    told = b'{"metrics":{"speculative_decoding":{"num_spec_steps":1}}}'
    assert b"num_spec_steps" not in passed(pools(ENGINE), request(), told)
    assert passed(pools(ENGINE), replace(request(), sees_drafts=True), told) == told
