"""The dashboard and the alerts, as far as no gateway is needed: structure, syntax, runbooks, and alerts that fire."""

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.monitoring import MONITORING, dashboard, expressions, rules
from support.promql import Query, Selector, read

from serve.config.gateway import DEFAULT_ADMIN_PORT

ROOT = MONITORING.parents[1]
PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
ALERTS = [rule for rule in rules() if "alert" in rule]
COUNTER = ("_total", "_bucket", "_sum", "_count")


def load(name: str) -> Any:
    return yaml.safe_load((MONITORING / name).read_text(encoding="utf-8"))


def sources_in(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "datasource" in value:
            yield value["datasource"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from sources_in(each)


def test_what_is_made_by_the_script_is_current() -> None:
    command = [sys.executable, str(MONITORING / "generate.py"), "--check"]
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_it_has_seven_rows_with_panels_below_each() -> None:
    kinds = [panel["type"] == "row" for panel in dashboard()["panels"]]
    assert sum(kinds) == 7
    assert kinds[0]
    assert not any(first and second for first, second in itertools.pairwise(kinds))


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_no_two_panels_overlap_and_none_leaves_the_grid() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for cell in itertools.product(range(grid["x"], grid["x"] + grid["w"]), range(grid["y"], grid["y"] + grid["h"])):
            assert cell not in taken, f"{panel['title']} covers {taken[cell]}"
            taken[cell] = panel["title"]


def test_the_data_source_is_a_variable_everywhere() -> None:
    found = list(sources_in(dashboard()))
    assert len(found) > 50
    assert [each for each in found if each != {"type": "prometheus", "uid": "${datasource}"}] == []


def test_every_panel_has_a_unit_a_title_of_its_own_and_legends_of_labels_that_it_keeps() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            kept = read(expressions()[f"{panel['title']} {target['refId']}"]).grouped
            recorded = {"model"} if target["expr"].startswith("model:") else set()
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept | recorded, panel["title"]


@pytest.mark.parametrize("place", expressions())
def test_no_counter_is_read_over_its_whole_life(place: str) -> None:
    for selector in read(expressions()[place]).selectors:
        if selector.metric.endswith(COUNTER) and ":" not in selector.metric.removeprefix("vllm:"):
            assert selector.next[:1] == "[" or selector.next in ("unless", "offset"), selector


def test_recorded_series_are_those_that_are_used() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {selector.metric for each in expressions().values() for selector in read(each).selectors}
    assert recorded == {metric for metric in used if ":" in metric and not metric.startswith("vllm:")}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_a_severity_and_a_runbook_that_exists(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_summary_names_no_label_that_its_expression_drops(alert: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    query = read(alert["expr"])
    recorded = {"model", "pool"} if any(":" in selector.metric for selector in query.selectors) else set()
    assert named <= query.grouped | recorded


def test_each_alert_is_tested() -> None:
    cases = [case for test in load("rules_test.yaml")["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert fired == silent == {alert["alert"] for alert in ALERTS}


def test_the_cause_of_each_alert_was_made_to_happen() -> None:
    places = [ROOT / "tests" / folder / "test_alerts.py" for folder in ("component", "chaos")]
    caused = {name for path in places for name in re.findall(r'"(Specgate\w+)"', path.read_text(encoding="utf-8"))}
    # Simulated engines have no memory to run out of; its metric is vLLM's own: see test_engines_metrics_have_the_names.
    assert caused == {alert["alert"] for alert in ALERTS} - {"SpecgatePreemptions"}


def test_the_files_for_compose_and_kubernetes_name_files_that_exist() -> None:
    for service in load("compose.yaml")["services"].values():
        for volume in service["volumes"]:
            assert (MONITORING / volume.split(":")[0]).is_file()
    assert load("prometheus.yaml")["rule_files"] == ["rules.yaml"]
    (target,) = load("prometheus.yaml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"127.0.0.1:{DEFAULT_ADMIN_PORT}"
    kustomization = load("kustomization.yaml")
    (files,) = (each["files"] for each in kustomization["configMapGenerator"])
    assert all((MONITORING / name).is_file() for name in (*kustomization["resources"], *files))
    assert load("prometheus-rule.yaml")["spec"] == load("rules.yaml")


def test_expressions_are_read_as_prometheus_reads_them() -> None:
    reply = read('sum by (a, le) (rate(x_total{b=~"c|}", d!=""}[5m])) / on (a) group_left () 2 > vllm:y offset 1h')
    first = Selector("x_total", (("b", "=~", "c|}"), ("d", "!=", "")), "[5m]")
    assert reply == Query((first, Selector("vllm:y", (), "offset")), frozenset({"a", "le"}))
    with pytest.raises(ValueError, match="no PromQL"):
        read("rate(x[5m]) ; y")


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here; Debian's package `prometheus` has it")
    return found


def ask(*command: str) -> None:
    reply = subprocess.run(command, capture_output=True, text=True, check=False)
    assert reply.returncode == 0, reply.stdout + reply.stderr


def test_prometheus_reads_every_rule_and_every_panel(promtool: str, tmp_path: Path) -> None:
    ask(promtool, "check", "rules", str(MONITORING / "rules.yaml"))
    panels = [{"record": "panel", "labels": {"place": place}, "expr": each} for place, each in expressions().items()]
    every = tmp_path / "panels.yaml"
    every.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": panels}]}), encoding="utf-8")
    ask(promtool, "check", "rules", "--lint=none", str(every))


def test_alerts_fire_when_they_should_and_stop_after(promtool: str) -> None:
    ask(promtool, "test", "rules", str(MONITORING / "rules_test.yaml"))
