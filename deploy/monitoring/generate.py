"""Writes what is made of other files here: `dashboard.json` for Grafana, and the rules as a Kubernetes resource.

`python deploy/monitoring/generate.py` writes them (`make monitoring`), with `--check` it only compares.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
WIDTH, HEIGHT = 24, 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OURS = 'model=~"$model", pool=~"$pool"'
MODEL = 'model=~"$model"'
GATEWAY = 'pool=""'  # of processes, those that are no engine
RATE = "$__rate_interval"

Row = tuple[str, list[dict[str, Any]]]


def panel(
    title: str, unit: str, *queries: tuple[str, str], kind: str = "timeseries", width: int = 8, **more: Any
) -> Any:
    """Returns a panel.

    Args:
        title: What it shows.
        unit: Grafana's id of the unit.
        queries: Expression and legend of each series.
        kind: Grafana's type of panel.
        width: In columns; a row has 24.
        more: `description`, `max` (of the axis) or `mappings`.
    """
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    defaults |= {name: more.pop(name) for name in ("max", "mappings") if name in more}
    targets = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for place, (expr, legend) in enumerate(queries)
    ]
    return {
        "type": kind, "title": title, "datasource": SOURCE, "targets": targets, "gridPos": {"w": width, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": {}, **more,
    }  # fmt: skip


def rate(metric: str, by: str, labels: str = OURS) -> str:
    """Returns the sum of a counter's rates."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}[{RATE}]))"


def quantile(share: float, metric: str, by: str, labels: str = OURS) -> str:
    """Returns a quantile of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', f'{by}, le', labels)})"


def gauge(function: str, metric: str, by: str = "model, pool", labels: str = OURS) -> str:
    """Returns a gauge, over replicas."""
    return f"{function} by ({by}) ({metric}{{{labels}}})"


POOL = "{{model}}/{{pool}}"
CELL = "model, pool, speculative, request_class"
CELL_NAME = f"{POOL} {{{{request_class}}}} {{{{speculative}}}}"
SERVED = rate("specgate_requests_total", "model", MODEL)
FAILED = rate("specgate_requests_total", "model", f'{MODEL}, status=~"5.."')
QUARANTINE = [{"type": "value", "options": {"0": {"text": "in service"}, "1": {"text": "quarantined"}}}]

WELL: Row = ("Is it well?", [
    panel("Gateway replicas", "none", ("count(specgate_request_bodies_bytes)", ""), kind="stat", width=4),
    panel("Pools without a replica", "none",
          (f"count({gauge('max', 'specgate_pool_replicas')} == 0) or vector(0)", ""), kind="stat", width=4),
    panel("Requests by status", "reqps", (rate("specgate_requests_total", "status"), "{{status}}")),
    panel("Share of requests that fail (5xx)", "percentunit",
          (f"({FAILED} or 0 * {SERVED}) / ({SERVED} > 0)", "{{model}}"),
          ("model:specgate_errors:ratio_rate1h", "{{model}}, last hour"),
          ("model:specgate_errors:ratio_rate6h", "{{model}}, last six hours")),
    panel("Time to first token", "s", *(
          (quantile(share, "specgate_time_to_first_token_seconds", "model, pool"), f"{POOL} p{share * 100:g}")
          for share in (0.5, 0.95, 0.99)), width=12),
    panel("Replicas", "none", (gauge("max", "specgate_pool_replicas"), f"{POOL} running"),
          (gauge("max", "specgate_pool_replicas_wanted"), f"{POOL} wanted"), width=12),
])  # fmt: skip

FULL: Row = ("Is it full?", [
    panel("Slots used", "percentunit",
          (f"{gauge('sum', 'specgate_pool_slots_held')} / {gauge('max', 'specgate_pool_slots')}", POOL)),
    panel("Requests that wait for a slot", "none",
          (gauge("sum", "specgate_pool_waiting", "model, pool, priority"), f"{POOL} {{{{priority}}}}")),
    panel("Wait for a slot, of those that waited", "s",
          *((quantile(share, "specgate_slot_wait_seconds", "model, pool, priority"),
             f"{POOL} {{{{priority}}}} p{share * 100:g}") for share in (0.5, 0.95))),
    panel("Refused: overload and limits (429)", "reqps",
          (rate("specgate_requests_total", "model", f'{MODEL}, status="429"'), "{{model}}"),
          (rate("specgate_limits_refused_total", "limit", 'mode="enforced"'), "limit of {{limit}}")),
    panel("KV memory of engines", "percentunit", (gauge("max", "vllm:kv_cache_usage_perc"), POOL), max=1),
    panel("Requests in engines", "none", (gauge("sum", "vllm:num_requests_running"), f"{POOL} running"),
          (gauge("sum", "vllm:num_requests_waiting"), f"{POOL} waiting")),
    panel("Preemptions in engines", "ops", (rate("vllm:num_preemptions_total", "model, pool"), POOL), width=24),
])  # fmt: skip

RUNNING = f"sum by (model, pool) (avg_over_time(vllm:num_requests_running{{{OURS}}}[{RATE}]))"
GENERATED = rate("vllm:generation_tokens_total", "model, pool")
ACCEPTED = rate("vllm:spec_decode_num_accepted_tokens_total", "model, pool")
FAST: Row = ("Is it fast?", [
    panel("Acceptance length by class, as the gateway learned it", "none",
          (gauge("max", "specgate_acceptance_length", "model, pool, request_class"), f"{POOL} {{{{request_class}}}}")),
    panel("Tokens per speculative step, as engines count", "none",
          (f"1 + {ACCEPTED} / ({rate('vllm:spec_decode_num_drafts_total', 'model, pool')} > 0)", POOL)),
    panel("Drafted tokens that are accepted", "percentunit",
          (f"{ACCEPTED} / ({rate('vllm:spec_decode_num_draft_tokens_total', 'model, pool')} > 0)", POOL), max=1),
    panel("Tokens generated", "none", (GENERATED, POOL), description="Per second"),
    panel("Time per token of a running request", "s", (f"{RUNNING} / ({GENERATED} > 0)", POOL),
          description="Mean number of running requests by tokens per second; time for prompts is in it."),
    panel("Prompt tokens found in the prefix cache", "percentunit",
          (f"{rate('vllm:prefix_cache_hits_total', 'model, pool')} / "
           f"({rate('vllm:prefix_cache_queries_total', 'model, pool')} > 0)", POOL), max=1),
])  # fmt: skip

RIGHT: Row = ("Is it right?", [
    panel("Clean rate and its interval", "percentunit", *(
          (gauge("max", f"specgate_clean_rate{bound}", CELL), f"{CELL_NAME} {bound.strip('_')}")
          for bound in ("", "_low", "_high")), width=12, max=1),
    panel("Quarantine", "none", (gauge("max", "specgate_quarantined", CELL), CELL_NAME), kind="state-timeline",
          width=12, mappings=QUARANTINE),
    panel("Broken responses of engines, per second", "ops",
          (rate("specgate_verdicts_total", "pool, outcome", f'{OURS}, outcome!="clean"'), "{{pool}} {{outcome}}")),
    panel("Guarded responses as clients got them, per second", "ops",
          (rate("specgate_answers_total", "model, outcome", MODEL), "{{model}} {{outcome}}")),
    panel("Broken responses that went on elsewhere, per second", "ops",
          (rate("specgate_resumes_total", "model, outcome, reason", MODEL), "{{model}} {{outcome}} {{reason}}"),
          description="`sound` and `broken` by what was wrong, `refused` where no engine took it; `rerun` by why not."),
])  # fmt: skip

SPECULATED = rate("specgate_requests_total", "model", f'{MODEL}, speculative="on"')
WHY: Row = ("Why was it decided so?", [
    panel("Decisions by reason", "reqps",
          (rate("specgate_decisions_total", "reason"), "{{reason}}")),
    panel("Share of requests with speculation", "percentunit",
          (f"{SPECULATED} / ({SERVED} > 0)", "{{model}}"),
          max=1),
    panel("Requests that no pool may serve, or that make no sense (4xx)", "reqps",
          (rate("specgate_requests_total", "status", f'{MODEL}, status=~"4..", status!~"429|499"'), "{{status}}")),
    panel("Attempts repeated before the first byte", "ops",
          (rate("specgate_retries_total", "pool", 'pool=~"$pool"'), "{{pool}}"), width=24),
])  # fmt: skip

TOKENS = rate("specgate_tokens_total", "tenant", f'{MODEL}, kind=~"input|output"')
USED = "sum by (tenant, limit) (increase(specgate_limits_used_total[1m]))"
LIMIT = "max by (tenant, limit) (specgate_limits_limit)"
QUOTA = 'max by (tenant) (specgate_limits_limit{limit="month"})'
WHO: Row = ("Who uses it?", [
    panel("Tokens by tenant, per second", "none", (TOKENS, "{{tenant}}")),
    panel("Tokens by kind, per second", "none", (rate("specgate_tokens_total", "kind", MODEL), "{{kind}}")),
    panel("Refused by a limit", "reqps",
          (rate("specgate_limits_refused_total", "tenant, limit, mode", ""), "{{tenant}} {{limit}} {{mode}}")),
    panel("Limits of rates used, over the last minute", "percentunit",
          (f"{USED} / on (tenant, limit) ({LIMIT} > 0)", "{{tenant}} {{limit}}"), width=12,
          description="Requests and weighted tokens of a minute, by what the tenant may use per minute."),
    panel("Month's quota used", "percentunit",
          (f'max by (tenant) (specgate_limits_month_spent) / on (tenant) {QUOTA}', "{{tenant}}"), width=12),
])  # fmt: skip

OWN: Row = ("Is the gateway itself well?", [
    panel("CPU", "percentunit", (rate("process_cpu_seconds_total", "replica", GATEWAY), "{{replica}}"), width=6),
    panel("Event loop lag, p99", "s", (quantile(0.99, "specgate_event_loop_lag_seconds", "replica", ""), "{{replica}}"),
          width=6),
    panel("Memory", "bytes", (gauge("max", "process_resident_memory_bytes", "replica", GATEWAY), "{{replica}}"),
          ("max by (replica) (specgate_request_bodies_bytes)", "{{replica}} bodies of requests"), width=6),
    panel("Connections and files", "none", (gauge("max", "process_open_fds", "replica", GATEWAY), "{{replica}}"),
          width=6),
    panel("Age of shared state", "s", ("max by (replica) (specgate_detector_age_seconds)", "{{replica}} quarantine"),
          ("max by (replica) (specgate_ledger_age_seconds)", "{{replica}} limits"), width=12),
    panel("Failures beside requests", "none", (rate("specgate_background_failures_total", "replica, part", ""),
          "{{replica}} {{part}}"), width=12),
    panel("Refused updates of the policy", "none", ("max by (replica) (specgate_policy_update_refused)", "{{replica}}"),
          width=6),
    panel("Keys that expire within 14 days", "none", ("sum(max by (source) (specgate_keys_ending))", ""), kind="stat",
          width=6),
    panel("Age of the advisories", "d", ("max(specgate_advisories_age_days)", ""), kind="stat", width=6),
])  # fmt: skip


def placed(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """Yields each row and its panels, with ids, from left to right and from top to bottom."""
    number, top = 0, 0
    for title, panels in rows:
        number += 1
        grid = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": grid}
        top += 1
        left = 0
        for each in panels:
            number += 1
            if left + each["gridPos"]["w"] > WIDTH:
                left, top = 0, top + HEIGHT
            yield {"id": number, **each, "gridPos": {**each["gridPos"], "x": left, "y": top}}
            left += each["gridPos"]["w"]
        top += HEIGHT


def choice(name: str, label: str) -> dict[str, Any]:
    """Returns a variable of the dashboard: some of a label's values."""
    query = f"label_values(specgate_pool_replicas, {label})"
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE,
        "query": {"query": query, "refId": "StandardVariableQuery"}, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Returns the dashboard."""
    source = {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "specgate", "title": "specgate", "tags": ["specgate"], "schemaVersion": 39, "editable": True,
        "timezone": "browser", "time": {"from": "now-6h", "to": "now"}, "refresh": "30s", "graphTooltip": 1,
        "templating": {"list": [source, choice("model", "model"), choice("pool", "pool")]},
        "panels": list(placed([WELL, FULL, FAST, RIGHT, WHY, WHO, OWN])),
    }  # fmt: skip


def files() -> dict[Path, str]:
    """Returns the text of every file that is made here."""
    rules = yaml.safe_load((HERE / "rules.yaml").read_text(encoding="utf-8"))
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "specgate"},
        "spec": rules,
    }
    return {
        HERE / "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        HERE / "prometheus-rule.yaml": "# Made of rules.yaml by `make monitoring`.\n"
        + yaml.safe_dump(resource, sort_keys=False, width=120),
    }


def main() -> int:
    """Writes the files that differ; with `--check` it only names them, and fails if there are any."""
    outdated = {path: text for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text}
    if "--check" in sys.argv[1:]:
        for path in outdated:
            print(f"{path} is out of date: run `make monitoring`")
        return 1 if outdated else 0
    for path, text in outdated.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
