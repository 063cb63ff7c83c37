"""What a body may hold: fields that would steer an engine are refused or taken out, limits hold, the rest passes."""

import json
import time
from typing import Any

import pytest
from msgspec import UNSET
from support.bodies import problem, sent

from serve.config.gateway import LimitsConfig, RequestsConfig
from serve.errors import InvalidRequestError
from serve.request.body_reader import RequestReader
from serve.request.completion import EngineFields, parse
from serve.request.field_rules import ACTIONS, REFUSE, STRIP, check_schemas, constrains

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
REFUSED = [name for name, action in ACTIONS.items() if action is REFUSE]
STRIPPED = [name for name, action in ACTIONS.items() if action is STRIP]


def test_every_field_of_engines_has_a_rule() -> None:
    assert set(ACTIONS) == set(EngineFields.__struct_fields__)


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_steers_the_engine_is_refused_with_the_way_to_allow_it(name: str) -> None:
    error = problem({**CHAT, name: {"a": 1}})
    assert (error.status, error.param, error.code) == (400, name, "field_not_allowed")
    assert f"requests.pass_fields: [{name}]" in error.message
    assert sent({**CHAT, name: {"a": 1}}, pass_fields=(name,)) == json.dumps({**CHAT, name: {"a": 1}}).encode()
    for nothing in (None, False):
        assert sent({**CHAT, name: nothing}) == json.dumps({**CHAT, name: nothing}).encode()


@pytest.mark.parametrize("name", STRIPPED)
def test_a_place_in_queue_or_cache_is_taken_out(name: str) -> None:
    body = {**CHAT, name: {"a": 1}, "x": 1.5}
    assert json.loads(sent(body)) == {**CHAT, "x": 1.5}
    assert sent(body, pass_fields=(name,)) == json.dumps(body).encode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_regex", "(a+)+b"),
        ("session_params", {"id": "another's"}),
        ("custom_params", {"__sglang_reasoning_end_token_ids": [1]}),
        ("max_dynamic_patch", 100_000),
        ("repetition_detection", {"max_pattern_size": 10_000, "min_pattern_size": 5_000, "min_count": 2}),
        ("input_ids", [1, 2, 3]),
        ("adapters", "/tmp/adapter"),
        ("image_data", "http://169.254.169.254/"),
        ("n_discard", -1),
        ("lora", [{"id": 0, "scale": 0.0}]),
    ],
)
def test_what_makes_an_engine_work_for_one_client_alone_is_refused(name: str, value: Any) -> None:
    assert problem({**CHAT, name: value}).param == name
    assert problem({"model": "m", "prompt": "x", name: value}, mode="strict").param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("extra_key", "x"),
        ("routed_dp_rank", 1),
        ("stream_interval", 1_000_000),
        ("custom_labels", {"a": "b"}),
        ("watermarking", False),
        ("nvext", {"backend_instance_id": 7, "token_data": [1, 2], "agent_hints": {"priority": 99}}),
        ("extra_args", {"priority": 99}),
    ],
)
def test_what_is_the_operators_to_set_is_taken_out_whatever_it_says(name: str, value: Any) -> None:
    assert json.loads(sent({**CHAT, name: value})) == CHAT


def test_an_escaped_name_hides_nothing() -> None:
    body = b'{"model":"m","\\u0063ache_salt":"x","messages":[]}'
    assert sent(body) == b'{"model":"m","messages":[]}'
    assert problem(b'{"model":"m","chat\\u005ftemplate":"x"}').param == "chat_template"


@pytest.mark.parametrize(
    "lookalike",
    ["Model", "MODEL", "\\u004dodel", "mod\uff45l", "cacheSalt", "\u212av_transfer_params", "\u017ftop", "max__tokens"],
)
def test_a_name_that_a_laxer_reader_takes_for_a_known_field_reaches_no_engine(lookalike: str) -> None:
    for members in (f'"model":"m","{lookalike}":"x"', f'"{lookalike}":"x","model":"m"'):
        assert json.loads(sent(f'{{{members},"x":1}}'.encode())) == {"model": "m", "x": 1}
    assert problem(f'{{"model":"m","{lookalike}":"x"}}'.encode(), mode="strict").code == "field_not_allowed"


def test_a_field_that_an_operator_lets_through_is_no_lookalike() -> None:
    body = b'{"model":"m","Model":"x"}'
    assert sent(body, pass_fields=("Model",)) == body


def test_other_unknown_fields_keep_their_bytes() -> None:
    body = b'{ "model":"m", "messages":[], "Vendor_Option": 1.50 }'
    assert sent(body) == body


def test_a_name_of_megabytes_is_not_folded() -> None:
    body = ('{"model":"m","' + "\ufdfa" * 1_000_000 + '":1}').encode()
    began_s = time.process_time()
    assert sent(body) == body
    assert time.process_time() - began_s < 0.3


@pytest.mark.parametrize("name", ["a\nb", "`", "x` - at `$.y", "", "$", "unknown field `z`", "\x00", "\u2028"])
def test_an_unknown_field_may_have_any_name(name: str) -> None:
    body = json.dumps({**CHAT, name: 1}).encode()
    assert sent(body) == body
    assert problem(body, mode="strict").code == "field_not_allowed"


def test_a_long_name_is_not_sent_back() -> None:
    assert len(problem({**CHAT, "x" * 100_000: 1}, mode="strict").message) < 500


def test_bytes_that_are_no_text_in_an_unknown_name_are_400() -> None:
    assert problem(b'{"model":"m","\xff":1}').code == "invalid_json"


def test_the_clients_arguments_for_the_engine_do_not_come_back_with_ours() -> None:
    body = json.dumps({**CHAT, "vllm_xargs": {"test_fault": 1}}).encode()
    assert RequestReader(RequestsConfig()).read(body)[1].vllm_xargs is UNSET


@pytest.mark.parametrize(
    ("arguments", "fine"),
    [
        ({"thinking": False, "enable_thinking": True}, True),
        ({"own_switch": "low", "level": 2}, True),
        ({"chat_template": "{{ 1 }}"}, False),
        ({"tokenize": False}, False),
        ({"padding": "max_length", "max_length": 1_000_000_000}, False),
        ({"own_switch": {"a": 1}}, False),
        ({"own_switch": ["a"]}, False),
    ],
)
def test_arguments_of_the_template_are_scalars_and_not_the_renderers_own(arguments: Any, fine: bool) -> None:
    body = {**CHAT, "chat_template_kwargs": arguments}
    if fine:
        assert sent(body) == json.dumps(body).encode()
    else:
        assert problem(body).code == "field_not_allowed"
        assert sent(body, pass_fields=("chat_template_kwargs",)) == json.dumps(body).encode()


@pytest.mark.parametrize("name", ["_backend", "backend"])
def test_a_client_does_not_choose_the_grammar_backend(name: str) -> None:
    assert problem({**CHAT, "structured_outputs": {"regex": "a+", name: "x"}}).code == "field_not_allowed"
    assert sent({**CHAT, "structured_outputs": {"regex": "a+"}})


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"n": 5}, {"max_n": 5}),
        ({"best_of": 5}, {"max_n": 5}),
        ({"top_logprobs": 21}, {"max_top_logprobs": 21}),
        ({"logprobs": 21}, {"max_top_logprobs": 21}),
        ({"n_probs": 21}, {"max_top_logprobs": 21}),
        ({"logprob_token_ids": [*range(21)]}, {"max_top_logprobs": 21}),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, {"max_logit_bias": 301}),
        ({"prompt": ["a"] * 17}, {"max_prompts": 17}),
        ({"prompt": [[1, 2]] * 17}, {"max_prompts": 17}),
    ],
)
def test_numbers_over_their_limit_are_refused_with_the_setting(fields: Any, setting: dict[str, int]) -> None:
    body = {"model": "m", **fields}
    error = problem(body)
    assert (error.param, error.code) == (next(iter(fields)), "over_limit")
    assert f"requests.{next(iter(setting))}" in error.message
    assert sent(body, **setting) == json.dumps(body).encode()


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs"])
def test_the_whole_vocabulary_is_more_alternatives_than_any_number(name: str) -> None:
    """vLLM reads -1 so, and writes a megabyte for each token."""
    error = problem({**CHAT, name: -1}, max_top_logprobs=1_000)
    assert (error.param, error.code) == (name, "over_limit")


@pytest.mark.parametrize("prompt", ["x" * 100, list(range(1000)), ["a"] * 16, [], None])
def test_one_long_prompt_is_one_prompt(prompt: Any) -> None:
    assert json.loads(sent({"model": "m", "prompt": prompt}))["prompt"] == prompt


class TestStrict:
    def test_known_fields_pass_byte_for_byte(self) -> None:
        body = b'{ "model":"m", "temperature":1.50, "max_tokens":3, "stream":true,"user":"u", "min_p":0.1, "seed":1 }'
        assert sent(body, mode="strict") == body

    def test_unknown_fields_are_refused_by_name_unless_they_are_listed(self) -> None:
        body = b'{ "model":"m", "x_vendor":{"a":[ ]} }'
        error = problem(body, mode="strict")
        assert (error.param, error.code) == ("x_vendor", "field_not_allowed")
        assert "requests.pass_fields: [x_vendor]" in error.message
        assert sent(body, mode="strict", pass_fields=("x_vendor",)) == body
        assert sent(body) == body

    def test_rules_hold_too(self) -> None:
        assert problem({**CHAT, "chat_template": "x"}, mode="strict").param == "chat_template"
        assert json.loads(sent({**CHAT, "cache_salt": "x"}, mode="strict")) == CHAT
        assert sent({**CHAT, "tools": [{"type": "function", "x": 1}]}, mode="strict")


@pytest.mark.parametrize(("name", "value"), [("stop", "ab"), ("stop_token_ids", 12_345), ("bad_words", "ab")])
def test_more_stops_than_anybody_lists_are_refused(name: str, value: Any) -> None:
    assert sent({**CHAT, name: [value] * 5})
    assert problem({**CHAT, name: [value] * 20_000}).param == name


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schemas", "setting", "limit"),
    [
        ([{"description": "x" * 1_100_000}], "max_schema_bytes", 1_048_576),
        ([{"enum": [1] * 50_001}], "max_schema_nodes", 50_000),
        ([{"enum": [1] * 30_000}] * 2, "max_schema_nodes", 50_000),
        ([{"allOf": [{}] * 50_001}], "max_schema_nodes", 50_000),
        ([nested(65)], "max_schema_depth", 64),
        ([{}] * 513, "max_tools", 512),
    ],
)
def test_schemas_over_a_limit_are_refused_and_told_which_setting_it_is(
    schemas: list[Any], setting: str, limit: int
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    body = {"model": "m", "messages": [], "tools": tools}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "tools"
    assert f"limits.{setting} is {limit}" in str(caught.value)


@pytest.mark.parametrize("in_text", [False, True])
def test_a_schema_in_vllms_own_field_is_bounded_too(in_text: bool) -> None:
    schema = nested(65)
    structured = {"json": json.dumps(schema) if in_text else schema}
    body = {"model": "m", "messages": [], "structured_outputs": structured}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "structured_outputs"
    assert "limits.max_schema_depth is 64" in str(caught.value)


@pytest.mark.parametrize("json_field", [nested(65), json.dumps(nested(65)), "[" * 100, [[[["{"] * 9]]] * 10_000])
@pytest.mark.parametrize(
    "form", [None, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {}}}]
)
def test_what_stands_for_a_schema_is_bounded_whether_it_is_used_or_not(form: Any, json_field: Any) -> None:
    """An engine reads it, too, before it says what is wrong."""
    body = {"model": "m", "messages": [], "response_format": form, "structured_outputs": {"json": json_field}}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"structured_outputs": {"choice": ["a"] * 60_000}}, "max_schema_nodes"),
        ({"structured_outputs": {"regex": "a" * 1_100_000}}, "max_schema_bytes"),
        ({"structured_outputs": {"json": {}, "structural_tag": "{" * 1_100_000}}, "max_schema_bytes"),
        ({"response_format": {"type": "structural_tag", "format": nested(65)}}, "max_schema_depth"),
        ({"response_format": {"type": "structural_tag", "structures": [{"schema": {}}] * 60_000}}, "max_schema_nodes"),
        ({"guided_json": nested(65)}, "max_schema_depth"),
        ({"json_schema": json.dumps(nested(65))}, "max_schema_depth"),
        ({"guided_choice": ["a"] * 60_000}, "max_schema_nodes"),
        *(({name: "a" * 1_100_000}, "max_schema_bytes") for name in ("regex", "ebnf", "grammar", "guided_regex")),
    ],
)
def test_whatever_an_engine_makes_a_grammar_of_is_bounded(fields: dict[str, Any], setting: str) -> None:
    body = {"model": "m", "messages": [], **fields}
    parsed = parse(json.dumps(body).encode())
    assert constrains(parsed)
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parsed, LimitsConfig())
    assert caught.value.param == next(iter(fields))
    assert f"limits.{setting} is" in str(caught.value)


@pytest.mark.parametrize("odd", [{"regex": "{" * 100}, {"json": 1}, "x", ["{"] * 100])
def test_what_is_no_schema_in_vllms_own_field_is_left_to_the_engine(odd: Any) -> None:
    body = {"model": "m", "messages": [], "structured_outputs": odd}
    check_schemas(parse(json.dumps(body).encode()), LimitsConfig())


def test_a_hundred_and_fifty_tools_with_nine_nullable_properties_are_an_ordinary_request() -> None:
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Of a tool server"}
    schema = {"type": "object", "properties": {f"p{n}": optional for n in range(9)}, "required": ["p0"]}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(150)]
    check_schemas(parse(json.dumps({"model": "m", "messages": [], "tools": tools}).encode()), LimitsConfig())


def test_schemas_within_the_limits_are_accepted() -> None:
    schemas = [nested(60), {"enum": ["{[,:"] * 5000}, *[{"properties": {"a": {}}}] * 100]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    body = {"model": "m", "messages": [], "tools": tools}
    check_schemas(parse(json.dumps(body).encode()), LimitsConfig())


@pytest.mark.parametrize("odd", ['"maximum":1e400', f'"const":{"9" * 5000}', r'"pattern":"a\ud800b"', '"a":1'])
def test_what_a_schema_may_hold_does_not_hang_on_its_size(odd: str) -> None:
    def take(properties: int, more: str = "") -> None:
        schema = ",".join([f'"p":{{{odd}}}', *(f'"p{n}":{{}}' for n in range(properties))])
        tool = f'{{"type":"function","function":{{"name":"f","parameters":{{"properties":{{{schema}}}{more}}}}}}}'
        body = f'{{"model":"m","messages":[],"tools":[{tool}]}}'.encode()
        check_schemas(parse(sent(body)), LimitsConfig())

    take(1)
    take(300)
    with pytest.raises(InvalidRequestError, match="max_schema_nodes"):
        take(1, f',"enum":{[1] * 50_001}')


def test_as_many_allowed_tools_as_tools_are_accepted() -> None:
    allowed = [{"type": "function", "function": {"name": "f"}}]
    tools = [{"type": "function", "function": {"name": "f"}}]

    def body(times: int) -> bytes:
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed * times}}
        return json.dumps({"model": "m", "messages": [], "tools": tools, "tool_choice": choice}).encode()

    check_schemas(parse(body(512)), LimitsConfig())
    with pytest.raises(InvalidRequestError, match="allowed tools"):
        check_schemas(parse(body(513)), LimitsConfig())
