import json

import pytest


@pytest.fixture
def traffic(tmp_path, body):
    path = tmp_path / "traffic.jsonl"
    lines = [body(), body(tools=False), body(enable_speculative=False, tools=False)]
    recorded = [json.dumps({"body": json.loads(body()), "headers": {"X-Enable-Speculative": "false"}})]
    as_text = [json.dumps({"body": body(tools=False)})]
    path.write_text("\n".join([*lines, *recorded, *as_text, "", "not json", body("unknown")]) + "\n")
    return path


def test_counts_what_the_live_code_decides(specgate, kimi, traffic):
    code, out = specgate("replay", traffic, "--config", kimi(), "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["requests"], report["invalid"]) == (7, 2)
    assert report["a"]["speculative_share"] == pytest.approx(2 / 5)
    assert report["a"]["pools"] == {"kimi/standard (standard)": 3, "kimi/speculative (speculative)": 2}
    costs = report["a"]["advisories"]
    assert costs["kimi-k2.6-original-eagle3-drafter"] == {"diverted": 2, "alone": 1}
    assert costs["caller-opt-out"]["diverted"] == 2
    assert report["b"] is None


def test_against_another_policy_names_what_changes(specgate, kimi, traffic, tmp_path):
    html = tmp_path / "report.html"
    run = ("replay", traffic, "-c", kimi(), "--against", kimi(drafter="kimi-k2.6-eagle3-mla"), "--html", html)
    code, out = specgate(*run, "--json", "--fail-on-change")
    report = json.loads(out)
    assert code == 1
    assert report["different"] == 1
    assert report["changes"] == [
        {"a": "kimi/standard (standard)", "b": "kimi/speculative (speculative)", "requests": 1, "first_line": 1}
    ]
    page = html.read_text()
    assert "<svg" in page
    assert "What changes from A to B" in page
    assert "http" not in page
    code, out = specgate(*run)
    assert code == 0
    assert "different decisions: 1" in out


def test_ten_thousand_requests_are_all_decided(specgate, kimi, tmp_path, body):
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join([body(), body(tools=False)] * 5000))
    _, out = specgate("replay", path, "-c", kimi(), "--against", kimi(version="0.19.1"), "--json")
    report = json.loads(out)
    assert (report["requests"], report["invalid"], report["different"]) == (10_000, 0, 0)
    assert report["a"]["speculative_share"] == 0.5
