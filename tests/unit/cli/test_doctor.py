import json
import re

import yaml

from serve.config.compiled_policy import SHIPPED_ADVISORIES


def test_a_covered_hazard_is_reported_and_passes(specgate, kimi):
    code, out = specgate("doctor", "--config", kimi(), "--json")
    report = json.loads(out)
    assert (code, report["healthy"]) == (0, True)
    found = next(each for each in report["findings"] if each["advisory"] == "kimi-k2.6-original-eagle3-drafter")
    assert found["level"] == "info"
    assert "served by pool standard" in found["message"]
    assert any("eagle3-mla" in cure for cure in found["cures"])
    row = next(each for each in report["models"]["kimi"]["requests"] if each["classes"] == ["tools_auto", "stream"])
    assert row["pools"]["speculative"]["forbidden_by"] == ["kimi-k2.6-original-eagle3-drafter"]
    assert row["pools"]["standard"]["allowed"]
    assert "tokens per step" in report["models"]["kimi"]["gain"]["speculative"]


def test_a_hazard_that_nothing_covers_fails(specgate, kimi, tmp_path):
    text = kimi().read_text()
    alone = tmp_path / "alone.yaml"
    alone.write_text(text[: text.index("      standard:")])
    code, out = specgate("doctor", "-c", alone)
    assert code == 1
    assert "refused" in out
    assert "some hazards are not covered" in out


def test_a_confirmed_hazard_of_the_standard_pool_fails(specgate, kimi, tmp_path):
    variant = tmp_path / "nvfp4.yaml"
    variant.write_text(kimi(drafter="d").read_text().replace("  kimi:", "  kimi:\n    quantization: nvfp4"))
    code, out = specgate("doctor", "-c", variant, "--json")
    errors = [each for each in json.loads(out)["findings"] if each["level"] == "error"]
    assert code == 1
    assert {each["advisory"] for each in errors} == {"kimi-nvfp4-missing-section-begin"}


def test_traps_of_stock_parsers_and_tokenizers_are_named(specgate, kimi):
    _, out = specgate("doctor", "-c", kimi(), "--json")
    messages = " ".join(each["message"] for each in json.loads(out)["findings"])
    assert "specgate_kimi_k2" in messages
    assert "tokenizer-mode" in messages


def test_a_pool_that_takes_more_requests_than_its_engine_runs_is_pointed_out(specgate, kimi, tmp_path):
    variant = tmp_path / "seats.yaml"
    text = kimi(drafter="d").read_text()
    variant.write_text(text.replace("{tool-call-parser:", "{max-num-seqs: 25, tool-call-parser:"))
    _, out = specgate("doctor", "-c", variant, "--json")
    assert any("its engine runs 25" in each["message"] for each in json.loads(out)["findings"])


def test_an_unreadable_advisory_fails_and_stops_all_speculation(specgate, kimi, tmp_path):
    folder = tmp_path / "advisories"
    folder.mkdir()
    (folder / "broken.yaml").write_text("id: [")
    config = kimi(drafter="d", more=f"policy: {{advisories: {folder}}}\n")
    code, out = specgate("doctor", "-c", config, "--json")
    report = json.loads(out)
    assert code == 1
    assert "broken" in report["findings"][0]["message"]
    assert not any(row["speculative"] for row in report["models"]["kimi"]["requests"])


def test_waivers_and_optimism_without_a_guard_are_pointed_out(specgate, kimi):
    more = (
        "policy:\n  optimistic: true\n  overrides:\n"
        "    - {action: waive, advisory: kimi-k2.6-original-eagle3-drafter, reason: probed, expires: '2999-01-01'}\n"
        "    - {action: forbid, pool: speculative, reason: over, expires: '2020-01-01'}\n"
    )
    _, out = specgate(
        "doctor",
        "-c",
        kimi(more=more),
        "--json",
    )
    messages = " ".join(each["message"] for each in json.loads(out)["findings"])
    assert "waived until 2999-01-01" in messages
    assert "expired on 2020-01-01" in messages


def test_a_canary_is_pointed_out_and_its_share_decides_nothing_else(specgate, kimi, tmp_path):
    path = tmp_path / "canary.yaml"
    canary = "next: {canary_share: 0.05, engine_args: {speculative-config: {method: eagle3, model: new}}}"
    path.write_text(f"{kimi().read_text().rstrip()}\n      {canary}\n")
    code, out = specgate("doctor", "--config", path, "--json")
    assert code == 0
    assert "a canary: first choice for 0.05 of conversations" in out
    assert {row["pool"] for row in json.loads(out)["models"]["kimi"]["requests"]} <= {"speculative", "standard"}


def test_a_drafter_for_another_model_fails(specgate, kimi):
    code, out = specgate("doctor", "-c", kimi(drafter="org/kimi-k2.5-eagle3"), "--json")
    errors = [each["message"] for each in json.loads(out)["findings"] if each["level"] == "error"]
    assert code == 1
    assert any("trained for kimi 2.5" in message for message in errors)


def test_known_holes_of_an_engine_are_warnings(specgate, kimi):
    _, out = specgate("doctor", "-c", kimi(version="0.18.0"), "--json")
    holes = {
        each["advisory"]: each["level"] for each in json.loads(out)["findings"] if "cve-" in (each["advisory"] or "")
    }
    assert holes == {"cve-2026-34755": "warning", "cve-2026-34756": "warning"}


REMOTE = """models:
  m:
    family: kimi-k2
    grammar: kimi_k2
    pools:
      a: {kind: remote, url: "http://127.0.0.1:9", facts: %s}
"""


def test_what_nobody_says_of_a_remote_engine_is_pointed_out(specgate, tmp_path):
    config = tmp_path / "remote.yaml"
    for facts, method, engine in (
        ("{}", True, True),
        ("{method: none, engine: vllm}", False, True),
        ('{method: none, engine: vllm, engine_version: "0.33.0"}', False, False),
    ):
        config.write_text(REMOTE % facts)
        _, out = specgate("doctor", "-c", config, "--json")
        messages = [each["message"] for each in json.loads(out)["findings"] if each["pool"] == "a"]
        assert any("does not say `method`" in message for message in messages) is method
        assert any("count as matched" in message and "engine_version" in message for message in messages) is engine


def test_facts_that_contradict_each_other_are_errors_of_doctor_deploy_and_serve(specgate, kimi, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(kimi().read_text().replace('"2.6"', '"2.5"'))
    code, out = specgate("doctor", "-c", wrong, "--json")
    errors = [each for each in json.loads(out)["findings"] if each["level"] == "error"]
    assert code == 1
    assert [("cut tool-call arguments" in each["message"], each["pool"]) for each in errors] == [(True, "speculative")]
    whole = tmp_path / "whole.yaml"
    application = {"name": "specgate", "import_path": "serve.app:build", "args": yaml.safe_load(wrong.read_text())}
    whole.write_text(yaml.safe_dump({"applications": [application]}))
    for command in ("serve", "deploy"):
        code, out = specgate(command, "--config", whole)
        said = " ".join(out.split())
        assert code != 0
        assert "cut tool-call arguments" in said
        assert "--accept-hazards" in said


def test_an_engine_newer_than_every_check_is_a_suspicion_and_said(specgate, kimi):
    new = kimi(drafter="org/kimi-k2.6-eagle3-mla", version="9.9.0")
    _, out = specgate("doctor", "-c", new, "--json")
    report = json.loads(out)
    rows = {" ".join(row["classes"]): row for row in report["models"]["kimi"]["requests"]}
    assert "engine-newer-than-checked" in rows["tools_auto stream"]["pools"]["speculative"]["forbidden_by"]
    assert rows["plain"]["pools"]["speculative"]["allowed"]
    assert any("9.9.0 is newer than" in each["message"] for each in report["findings"])
    _, out = specgate("doctor", "-c", kimi(drafter="org/kimi-k2.6-eagle3-mla", version="0.32.0"), "--json")
    assert "newer than" not in out


def test_the_age_of_what_is_known_is_said_and_old_knowledge_is_a_warning(specgate, kimi, tmp_path):
    folder = tmp_path / "advisories"
    folder.mkdir()
    text = (SHIPPED_ADVISORIES / "kimi-counting-tool-parser.yaml").read_text()
    (folder / "kimi-counting-tool-parser.yaml").write_text(re.sub(r'date: "[0-9-]+"', 'date: "2025-01-01"', text))
    for more, level in (("", "info"), (f"policy: {{advisories: {folder}}}\n", "warning")):
        _, out = specgate("doctor", "-c", kimi(more=more), "--json")
        (found,) = [each for each in json.loads(out)["findings"] if "advisories were last" in each["message"]]
        assert found["level"] == level
