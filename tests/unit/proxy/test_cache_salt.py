"""Salts of prefix caches: a tenant's own, whatever its clients send, and only for engines that know them."""

import json
import re
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Candidate, Decision, PoolFacts, RequestFeatures
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.proxy.outgoing import OutgoingRequests, knows_salts
from serve.proxy.routed_request import Attribution, RoutedRequest
from serve.request.body_reader import RequestReader
from serve.routing.fair_queue import Asker
from serve.routing.prefix_placement import PrefixIndex, blocks_of

VLLM = {"engine": "vllm", "engine_version": "0.19.1", "method": "none"}
SGLANG = {"engine": "sglang", "method": "none"}
PATH = "/v1/chat/completions"
TENANTS = st.text("abAB01._-", min_size=1, max_size=6)
OWN = st.none() | st.text(max_size=8) | st.integers() | st.lists(st.text(max_size=3), max_size=2) | st.booleans()


def config(facts: dict[str, Any], requests: dict[str, Any] | None = None, **access: Any) -> str:
    pool = {"kind": "remote", "url": "http://unused", "facts": facts}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}
    given = {"mode": "required", "state_dir": "/nowhere", **access}
    return json.dumps({"models": {"m": model}, "access": given, "requests": requests or {}})


@cache
def parts(text: str) -> tuple[RequestReader, OutgoingRequests]:
    """Returns what reads a body, and what an engine gets, for a configuration."""
    config = GatewayConfig.parse(json.loads(text))
    pools = OutgoingRequests(config, reports=False)
    pools.adopt(compile_for(config, {}).facts)
    return RequestReader(config.requests), pools


def sent(config: str, tenant: str, body: bytes, path: str = PATH) -> dict[str, Any]:
    reader, pools = parts(config)
    body, parsed, patch = reader.read(body)
    request = RoutedRequest(
        path, {}, "r", body, patch, parsed, RequestFeatures("m"), Decision("m", ()), False, count(1),
        Attribution(engine_id="e"), asker=Asker(tenant),
    )  # fmt: skip
    members: list[tuple[str, Any]] = json.loads(
        pools.outgoing(request, Candidate("p", opt_out=False, speculative=False)).patch.apply(body),
        object_pairs_hook=list,
    )
    assert len(dict(members)) == len(members), "no member is there twice: engines differ in which one they read"
    return dict(members)


def salt(tenant: str, own: Any = None, facts: dict[str, Any] = VLLM, **how: Any) -> Any:
    members = {"model": "m", "messages": [], **({} if own is None else {"cache_salt": own})}
    return sent(config(facts, **how), tenant, json.dumps(members).encode()).get("cache_salt")


@given(TENANTS, TENANTS, OWN, OWN)
def test_no_two_tenants_share_a_salt_whatever_their_clients_send(one: str, two: str, own: Any, other: Any) -> None:
    first, second = salt(one, own), salt(two, other)
    assert re.fullmatch("[A-Za-z0-9_-]{43}", first), "odd ones have ended engines"
    if one != two:
        assert first != second
        assert salt(two, first) != first, "not by sending another tenant's salt"
    else:
        same = (own if isinstance(own, str) else "") == (other if isinstance(other, str) else "")
        assert (first == second) is same


def test_a_clients_own_salt_parts_it_from_its_tenant() -> None:
    assert len({salt("red"), salt("red", "mine"), salt("red", "yours")}) == 3
    assert salt("red", "") == salt("red")


@pytest.mark.parametrize(
    "text",
    [
        '{"model":"m","messages":[],"cache_salt":null}',
        '{"model":"m","messages":[],"cache_salt":"a","cache_salt":null}',
        '{"cache_salt":null,"model":"m","messages":[],"cache\\u005fsalt":"a"}',
        '{"model":"m","messages":[],"cache_salt":"\\ud800"}', '{"model":"m","messages":[],"cache_salt":{"a":1}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("passes", [(), ("cache_salt",)])
def test_no_spelling_gets_past_the_tenants_salt(text: str, passes: tuple[str, ...]) -> None:
    found = sent(config(VLLM, {"pass_fields": passes}), "red", text.encode())["cache_salt"]
    assert re.fullmatch("[A-Za-z0-9_-]{43}", found)
    assert found != sent(config(VLLM, {"pass_fields": passes}), "blue", text.encode())["cache_salt"]


def test_the_setting_and_a_gateway_without_tenants_leave_the_cache_shared() -> None:
    assert salt("red", cache_salt="off") is None
    assert salt("red", "own", cache_salt="off") is None
    assert salt("red", mode="off") is None


@pytest.mark.parametrize(
    ("facts", "knows"),
    [
        (VLLM, True), ({**VLLM, "engine_version": "0.33.0+cpu"}, True), ({**VLLM, "engine_version": "0.10.2"}, False),
        ({**VLLM, "engine_version": "0.11.0rc1"}, False), ({**VLLM, "engine_version": "nightly"}, False),
        ({"engine": "vllm", "method": "none"}, False), (SGLANG, False),
        ({**SGLANG, "engine_version": "0.5.3"}, True), ({**SGLANG, "engine_version": "0.5.23.post1"}, True),
        ({**SGLANG, "engine_version": "0.5.2"}, False), ({"method": "none"}, False),
    ],
)  # fmt: skip
def test_only_engines_that_know_salts_get_one(facts: dict[str, Any], knows: bool) -> None:
    assert (salt("red", facts=facts) is not None) is knows


def test_an_engine_of_ours_that_has_not_reported_yet_knows_salts() -> None:
    assert knows_salts(PoolFacts("m", "p", kind="vllm", engine="vllm"))


def test_what_is_no_completion_has_no_salt() -> None:
    assert "cache_salt" not in sent(config(VLLM), "red", b'{"model":"m","messages":[]}', "/tokenize")


def test_a_prompt_is_placed_where_its_own_tenant_has_sent_it() -> None:
    index, prompt = PrefixIndex(lambda _: 8192), [b"x" * 9000]
    index.sent("one", blocks_of(prompt, salt("red")))
    index.sent("two", blocks_of(prompt, salt("blue")))
    for tenant, replica in (("red", "one"), ("blue", "two")):
        assert index.choose(blocks_of(prompt, salt(tenant)), {"one": 0, "two": 0}) == replica
