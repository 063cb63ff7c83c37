import json

import pytest

CONTRACT = {"model", "pool", "speculative", "classes", "reasons", "refused"}
BANNED = "kimi-k2.6-original-eagle3-drafter"


def test_json_holds_the_contract_and_what_would_change(specgate, kimi, body):
    code, out = specgate("explain", "--config", kimi(), "--request", "-", "--json", stdin=body())
    report = json.loads(out)
    assert code == 0
    assert report.keys() >= CONTRACT
    assert (report["model"], report["pool"], report["speculative"]) == ("kimi", "standard", False)
    assert report["classes"] == ["tools_auto"]
    assert [reason["advisory"] for reason in report["reasons"] if reason["effect"] == "forbid"] == [BANNED]
    assert all(reason.keys() == {"advisory", "effect", "summary"} for reason in report["reasons"])
    assert report["refused"] is False
    assert {each["advisory"] for each in report["would_change"]} == {BANNED}


def test_every_change_that_is_offered_was_tried(specgate, kimi, body):
    _, out = specgate("explain", "-c", kimi(version="0.19.1"), "-r", "-", "--json", stdin=body())
    changes = json.loads(out)["would_change"]
    assert [each["change"].startswith("all of") for each in changes] == [True]
    assert all(each["speculative"] for each in changes)


def test_a_request_from_a_file_under_an_alias(specgate, kimi, body, tmp_path):
    request = tmp_path / "request.json"
    request.write_text(body("k2", tools=False))
    code, out = specgate("explain", "-c", kimi(), "-r", request, "--json")
    assert code == 0
    assert json.loads(out)["speculative"] is True


def test_a_header_can_hold_the_preference(specgate, kimi, body):
    run = ("explain", "-c", kimi(), "-r", "-", "--json", "-H", "X-Enable-Speculative: false")
    _, out = specgate(*run, stdin=body(tools=False))
    report = json.loads(out)
    assert report["pool"] == "standard"
    assert report["would_change"][0]["change"] == "leave out `enable_speculative: false`"


def test_a_request_whose_broken_answer_could_not_be_resumed_says_why(specgate, kimi, body):
    several = json.dumps({**json.loads(body()), "n": 2})
    _, out = specgate("explain", "-c", kimi(), "-r", "-", "--json", stdin=several)
    assert json.loads(out)["rerun_only"] == "several"
    _, out = specgate("explain", "-c", kimi(), "-r", "-", stdin=several)
    assert "never resumed: several" in out
    _, out = specgate("explain", "-c", kimi(), "-r", "-", "--json", stdin=body())
    assert "rerun_only" not in json.loads(out)


def test_the_report_names_pool_and_reason(specgate, kimi, body):
    _, out = specgate("explain", "-c", kimi(), "-r", "-", stdin=body())
    assert "standard: not speculative" in out
    assert "kimi-k2.6-eagle3-mla" in out


def test_wrong_input_ends_with_code_2_and_one_line(specgate, kimi, body, tmp_path):
    for arguments, stdin in (
        (("-c", kimi(), "-r", "-"), "{"),
        (("-c", kimi(), "-r", "-"), body("unknown")),
        (("-c", kimi(), "-r", tmp_path / "none"), None),
        (("-c", tmp_path / "none.yaml", "-r", "-"), body()),
        (("-c", kimi(), "-r", "-", "-H", "nonsense"), body()),
    ):
        code, out = specgate("explain", *arguments, stdin=stdin)
        assert code == 2, out
        assert out.startswith("specgate: ")


def test_a_file_that_holds_no_request_is_named(specgate, kimi, tmp_path):
    request = tmp_path / "request.json"
    request.write_text("models: {}")
    code, out = specgate("explain", "-c", kimi(), "-r", request)
    assert (code, f"--request {request}: The body is not valid JSON" in " ".join(out.split())) == (2, True)


def test_the_suffix_of_a_models_name_forbids_speculation_here_too(specgate, kimi, body):
    code, out = specgate("explain", "-c", kimi(), "-r", "-", "--json", stdin=body("kimi:nospec", tools=False))
    report = json.loads(out)
    assert (code, report["model"], report["speculative"]) == (0, "kimi", False)
    assert report["reasons"][0]["advisory"] == "caller-opt-out"


def test_a_request_of_another_api_is_decided_as_the_gateway_does(specgate, kimi):
    tool = {"name": "f", "input_schema": {"type": "object"}}
    request = {"model": "kimi", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    run = ("explain", "-c", kimi(), "-r", "-", "--json")
    _, out = specgate(*run, "--api", "messages", stdin=json.dumps(request))
    assert json.loads(out)["classes"] == ["tools_auto"]
    code, out = specgate(*run, "--api", "grpc", stdin=json.dumps(request))
    assert (code, "`api` must be one of chat" in out) == (2, True)


def test_what_the_gateway_refuses_is_refused_here_too(specgate, kimi, body):
    refused = json.dumps({**json.loads(body()), "prompt_embeds": "AAAA"})
    code, out = specgate("explain", "-c", kimi(), "-r", "-", stdin=refused)
    assert (code, "prompt_embeds" in out) == (2, True)


def test_a_name_that_a_pattern_matches_is_decided_as_the_model_that_has_it(specgate, kimi, body, tmp_path):
    config = kimi()
    config.write_text(config.read_text().replace("[k2]", '["claude-*"]'))
    request = tmp_path / "body.json"
    request.write_text(body(model="claude-opus-4-5:nospec"))
    code, output = specgate("explain", "-c", config, "-r", request, "--json")
    assert code == 0
    assert (json.loads(output)["model"], json.loads(output)["speculative"]) == ("kimi", False)


TWO_POOLS = """
models:
  m:
    family: qwen
    grammar: hermes
    guard: {mode: %(mode)s}
    pools:
      fast:
        kind: remote
        url: "http://a"
        facts: {method: eagle3, engine: vllm, engine_version: "0.32.0"}
        proven: [any]
      slow: {kind: remote, url: "http://b", facts: {method: none, engine: vllm, engine_version: "0.32.0"}}
quarantine: {enabled: %(enabled)s, probe_share: 0.03, reference_share: 0.05}
policy: {load: %(load)s}
"""
SAMPLE = "0.05 of such requests are samples: slow without speculation is measured too, to compare the others with."
OUT = "quarantine: while fast with speculation is out, slow answers such requests"
ORDER = "load: the candidates may be in another order (policy.load: route)"


@pytest.mark.parametrize(
    ("settings", "request_", "samples", "live"),
    [
        ({}, {}, [SAMPLE], [f"{OUT}, but for 0.03 that are probes"]),
        ({"load": "route"}, {}, [SAMPLE], [ORDER, f"{OUT}, but for 0.03 that are probes"]),
        ({"load": "route"}, {"tools": False}, [], [ORDER]),
        ({"mode": "observe"}, {}, [SAMPLE], [OUT]),
        ({"mode": '"off"'}, {}, [], [OUT]),
        ({"enabled": "false"}, {}, [], []),
        ({"load": "route"}, {"enable_speculative": True}, [], [OUT]),
        ({}, {"enable_speculative": False}, [], []),
    ],
    ids=["tools", "load", "text", "no reruns", "no guard", "no quarantine", "speculation asked for", "opted out"],
)
def test_what_only_a_running_gateway_does_with_such_requests_is_told(
    specgate, body, tmp_path, settings, request_, samples, live
):
    config = tmp_path / "config.yaml"
    config.write_text(TWO_POOLS % {"mode": "heal", "enabled": "true", "load": "observe", **settings})
    code, out = specgate("explain", "-c", config, "-r", "-", "--json", stdin=body("m", **request_))
    report = json.loads(out)
    assert (code, report["live"]) == (0, live)
    assert [each["summary"] for each in report["reasons"] if each["advisory"] == "reference-sample"] == samples
    _, out = specgate("explain", "-c", config, "-r", "-", stdin=body("m", **request_))
    assert all(line in " ".join(out.split()) for line in live)


def test_an_answer_that_the_guard_can_not_check_is_no_sample(specgate, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(TWO_POOLS % {"mode": "heal", "enabled": "true", "load": "observe"})
    text = json.dumps({"model": "m", "prompt": "hi", "response_format": {"type": "json_object"}})
    _, out = specgate("explain", "-c", config, "-r", "-", "--json", stdin=text)
    report = json.loads(out)
    assert "json_object" in report["classes"]
    assert "reference-sample" not in report["evidence"]
    assert report["live"] == [OUT]
