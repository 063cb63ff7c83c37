"""The dashboard and the rules that ship in deploy/monitoring."""

import json
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
VARIABLES = {"$__rate_interval": "5m", "$model": ".*", "$pool": ".*"}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return loaded


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """Every expression, by where it stands; the dashboard's variables have values."""
    found = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = expression
    return found
