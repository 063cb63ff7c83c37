"""Examples of the configuration can be loaded, and defaults that pages tell are the code's."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from docs._generate import configuration
from policies import load_advisories
from serve.access import oidc
from serve.access.key_file import KeyRow, TenantRow, read_key_file
from serve.config.gateway import GatewayConfig
from serve.config.guard import GuardConfig
from serve.guard import transcript
from serve.guard.core import json_prefix, rescue, schema_cost
from serve.limits import accounts, bucket, usage
from serve.limits import slice as slice_
from serve.parsing import strict_json
from serve.routing import fair_queue
from serve.shared import report

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"), ROOT / "README.md"]
_BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_POOL = {"family": "f", "grammar": "hermes", "pools": {"p": {"kind": "sim"}}}
_TOLD = re.compile(r"`([a-z_.]+)` \((\d+)(?: s)?(?: by default)?\)")


def examples(path: Path) -> Iterator[Any]:
    for _, block in _BLOCK.findall(path.read_text(encoding="utf-8")):
        yield from yaml.safe_load_all(textwrap.dedent(block))


def gateway_part(document: Any) -> dict[str, Any] | None:
    """The part of an example that is specgate's configuration, made whole; None if it is about something else."""
    if not isinstance(document, dict):
        return None
    (args, *_) = [each.get("args", {}) for each in document.get("applications", ())] or [document.get("args", document)]
    if "pools" in args:
        args = {"models": {"m": args}}
    if not args.keys() & GatewayConfig.model_fields.keys():
        return None
    models = {name: {**_POOL, **model} for name, model in args.get("models", {"m": {}}).items()}
    return {**args, "models": models}


def test_every_example_of_the_configuration_can_be_loaded() -> None:
    found = [(path, part) for path in PAGES for each in examples(path) if (part := gateway_part(each)) is not None]
    assert len(found) > 15
    for path, part in found:
        GatewayConfig.parse(part, path)


def test_the_settings_on_the_page_of_the_guard_are_the_defaults() -> None:
    (guard,) = (each["models"]["kimi"]["guard"] for each in examples(ROOT / "docs/explanation/guard.md"))
    assert guard == asdict(GuardConfig())


def test_defaults_in_prose_are_those_of_the_configuration() -> None:
    defaults: dict[str, set[str]] = {}
    for key in configuration.config_keys():
        for name in (key.path, key.path.rsplit(".", 1)[-1]):
            defaults.setdefault(name, set()).add(key.default.strip("`"))
    reply = [(path, *match) for path in PAGES for match in _TOLD.findall(path.read_text(encoding="utf-8"))]
    reply = [each for each in reply if each[1] in defaults]
    assert len(reply) > 4
    assert [each for each in reply if each[2] not in defaults[each[1]]] == []


def test_the_example_of_an_advisory_can_be_loaded(tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/write-an-advisory.md"
    (example,) = (each for each in examples(page) if isinstance(each, dict) and "affects" in each)
    (tmp_path / f"{example['id']}.yaml").write_text(yaml.safe_dump(example), encoding="utf-8")
    (advisory,) = load_advisories(tmp_path)
    assert advisory.status == "confirmed"


def test_the_example_of_a_file_of_keys_can_be_read(tmp_path: Path) -> None:
    (example,) = (each for each in examples(ROOT / "docs/how-to/manage-keys.md") if "tenants" in each)
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump(example), encoding="utf-8")
    tenants, keys = read_key_file(tmp_path / "keys.yaml")
    assert [tenant.name for tenant in tenants] == [key.tenant for key in keys]


def test_every_field_of_the_file_of_keys_is_on_its_page() -> None:
    text = (ROOT / "docs/how-to/manage-keys.md").read_text(encoding="utf-8")
    fields = {*KeyRow.model_fields, *TenantRow.model_fields}
    assert {name for name in fields if f"`{name}`" not in text and f"{name}:" not in text} == set()


def test_files_of_this_repository_that_commands_are_given_hold_a_gateway() -> None:
    given = {
        file
        for path in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "Makefile")
        for file in re.findall(r"--config (deploy/[\w./-]+\.yaml)", path.read_text(encoding="utf-8"))
    }
    assert len(given) > 3
    for file in given:
        GatewayConfig.load(ROOT / file)


@pytest.mark.parametrize(
    ("page", "module", "name", "reply"),
    [
        ("explanation/guard", json_prefix, "_MOST_OPEN", "{} levels"),
        ("explanation/guard", strict_json, "_MOST_BRACKETS", "{:,} brackets"),
        ("explanation/guard", strict_json, "_MOST_COLONS", "{:,} colons"),
        ("explanation/guard", strict_json, "_MOST_SIGNS", "{:,} colons and commas"),
        ("explanation/guard", rescue, "_MOST_MARKERS", "{} markers"),
        ("explanation/guard", rescue, "_MOST_SIGNS", "{:,} brackets, quotes"),
        ("explanation/limits", report, "SETTLE_S", "nothing for {:g} s"),
        ("explanation/limits", bucket, "FORGET_S", "silent for {:g} s"),
        ("explanation/limits", slice_, "_AHEAD_S", "about {:g} s of what it spent"),
        ("explanation/limits", fair_queue, "_KEPT_REPORTS", "up to {} s of what it is behind"),
        ("how-to/use-the-admin-api", transcript, "MOST", "the last {} reruns"),
        ("how-to/manage-keys", oidc, "_LEEWAY_S", "give or take {:g} s"),
        ("reference/metrics", usage, "_MOST_TENANTS", "at most {} names"),
    ],
)
def test_numbers_in_prose_are_those_of_the_code(page: str, module: ModuleType, name: str, reply: str) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    assert reply.format(vars(module)[name]) in text


def test_times_of_silence_in_prose_are_those_of_the_code() -> None:
    text = " ".join((ROOT / "docs/explanation/limits.md").read_text(encoding="utf-8").split())
    assert f"waits longer than {accounts.PATIENCE_S * 1000:g} ms for a silent ledger" in text
    assert f"have {vars(schema_cost)['_BUDGET_S'] * 1000:g} ms together" in (
        ROOT / "docs/explanation/guard.md"
    ).read_text(encoding="utf-8")
