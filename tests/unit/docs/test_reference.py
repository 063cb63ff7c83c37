"""The reference pages say what the code says."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import serve
from docs._generate import cli, configuration, http_api, metrics, pages
from policies.classes import GROUPS, KINDS, MODIFIERS
from policies.decide import REASONS
from serve.admin.authorization import ADMIN_PORT, DATA_PORT
from serve.gateway.cors import EXPOSED
from serve.guard.core import Outcome

DOCS = pages.DOCS
ROOT = DOCS.parent
SERVE = Path(serve.__file__).parent
HEADER = re.compile(r"x-(?:specgate|sim|enable|request|session|should|api|real)-[a-z]+(?:-[a-z]+)*")
OF_THE_REPLICA = (  # metrics without labels: there is one of each in a replica, or in the admin API
    "specgate_advisories_age_days", "specgate_audit_log_failing", "specgate_detector_age_seconds",
    "specgate_event_loop_lag_seconds",
    "specgate_policy_update_refused", "specgate_request_bodies_bytes",
)  # fmt: skip
READ_METRICS = ("gateway/snapshot.py", "admin/history.py", "admin/board.py")  # for the dashboard
NOT_THE_GATEWAY = ("tools", "cli")  # commands that send requests to any gateway


def page(name: str) -> str:
    return (pages.REFERENCE / name).read_text(encoding="utf-8")


def test_the_pages_are_current():
    # In a process of its own: metrics that other tests have counted would stand on the page.
    command = [sys.executable, "-m", "docs._generate", "--check"]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert check.returncode == 0, f"run `make reference`: {check.stdout}{check.stderr}"


def test_every_block_is_on_a_page():
    asked_for = re.findall(r"<!-- generated: ([\w-]+) -->", "".join(path.read_text("utf-8") for path in pages.PAGES))
    assert sorted(asked_for) == sorted(pages.BLOCKS)


def test_every_config_key_is_described():
    keys = configuration.config_keys()
    assert len(keys) > 70
    assert [key.path for key in keys if not key.description] == []
    assert {
        "models.MODEL.pools.POOL.autoscaling.min_replicas",
        "models.MODEL.guard.mode",
        "policy.overrides[].expires",
    } < {key.path for key in keys}


def test_every_config_key_is_on_the_page():
    text = page("configuration.md")
    assert [key.path for key in configuration.config_keys() if f"- `{key.path.rsplit('.', 1)[-1]}` (" not in text] == []


def test_every_fact_and_every_setting_of_the_simulator_is_described():
    for section in (configuration.facts(), configuration.simulator()):
        assert [line for line in section.splitlines() if line.endswith(": ")] == []


def test_every_command_and_option_is_on_the_page_with_its_meaning():
    text = page("cli.md")
    commands = dict(cli.commands())
    assert {"specgate serve", "specgate quarantine set"} < set(commands)
    for name, command in commands.items():
        assert command.help, f"{name} has no docstring"
        section = text.split(f"## {name}\n", 1)[1].split("\n## ", 1)[0]
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name} has no help"
            for spelling in cli.names(parameter):
                assert f"`{spelling}`" in section, f"{name} {spelling} is missing: run `make reference`"


def test_every_metric_is_on_the_page():
    text = page("metrics.md")
    found = metrics.declared()
    assert {"specgate_requests_total", "specgate_quarantined", "specgate_request_duration_seconds"} < {
        metric.name for metric in found
    }
    assert [metric.name for metric in found if f"| `{metric.name}` |" not in text] == []
    assert [metric.name for metric in found if not metric.description] == []
    assert [metric.name for metric in found if not metric.labels] == list(OF_THE_REPLICA)


def test_the_name_that_is_scraped_leads_to_the_one_file_that_counts_it():
    declared = {metric.name for metric in metrics.declared()}
    places: dict[str, list[str]] = {name: [] for name in declared}
    for path in SERVE.rglob("*.py"):
        place = path.relative_to(SERVE).as_posix()
        if place not in READ_METRICS:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and node.value in declared:
                    places[node.value].append(place)
    assert {name: found for name, found in places.items() if len(found) != 1} == {}
    assert places["specgate_stalled_streams_total"] == ["proxy/stalls.py"]


def test_counters_alone_end_in_total():
    wrong = [each for each in metrics.declared() if each.name.endswith("_total") is not (each.type == "counter")]
    assert wrong == []


def test_every_label_is_explained():
    text = page("metrics.md")
    table_of_labels = text[text.index("| label | values |") :]
    labels = {label for metric in metrics.declared() for label in metric.labels}
    assert {label for label in labels if f"`{label}`" not in table_of_labels} == set()


def test_every_error_is_on_the_page_with_what_to_do():
    rows = http_api.errors_table().splitlines()[2:]
    assert len(rows) > 10
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_error_code_that_the_code_names_is_known():
    """A finer code than a class's own is the argument `code` of an error; those of one dialect are on its page."""
    named = set()
    for path in SERVE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
                codes = [each.value for each in node.keywords if each.arg == "code"]
                named.update(code.value for code in codes if isinstance(code, ast.Constant))
    assert {"invalid_json", "engine_stalled", "unsupported_tool"} <= named
    others = named - {code for _, code, _ in http_api.errors()}
    assert {code for code in others if f"`{code}`" not in page("responses.md")} == set()


def test_every_route_is_on_the_page_with_its_meaning():
    rows = [row for port in (DATA_PORT, ADMIN_PORT) for row in http_api.routes_table(port).splitlines()[2:]]
    assert any("POST /v1/chat/completions" in row for row in rows)
    assert any("GET /metrics" in row for row in rows)
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_header_that_the_code_names_is_on_the_page():
    text = page("http-api.md")
    found = {
        header
        for path in SERVE.rglob("*.py")
        if path.relative_to(SERVE).parts[0] not in NOT_THE_GATEWAY
        for header in HEADER.findall(path.read_text(encoding="utf-8"))
    }
    assert {"x-specgate-pool", "x-enable-speculative", "x-session-id", "x-request-id"} < found
    assert {header for header in found if f"`{header}`" not in text} == set()


def test_pages_of_other_sites_may_read_every_response_header_of_the_inference_routes():
    section = page("http-api.md").split("## Response headers", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|(.*)", section, re.MULTILINE)
    reply = {
        name for names, rest in rows if "/v1/route/explain" not in rest for name in re.findall(r"`([^`]+)`", names)
    }
    assert {"x-should-retry", "x-ratelimit-reset-tokens"} < reply
    assert reply - {"requests"} - set(EXPOSED) == set()


def test_every_kind_of_reason_is_on_the_pages_that_list_them():
    in_code = {
        name
        for folder in (ROOT / "policies", SERVE)
        for path in folder.rglob("*.py")
        for name in re.findall(r'Reason\(\s*"([a-z-]+)"', path.read_text(encoding="utf-8"))
    }
    assert {"caller-opt-out", "load"} <= in_code <= REASONS
    for text in (page("http-api.md"), (DOCS / "explanation" / "policy.md").read_text(encoding="utf-8")):
        assert {name for name in REASONS if f"`{name}`" not in text} == set()


def test_every_request_class_is_explained_on_the_page_of_the_policy():
    text = (DOCS / "explanation" / "policy.md").read_text(encoding="utf-8")
    assert {name for name in (*KINDS, *MODIFIERS, *GROUPS) if f"`{name}`" not in text} == set()


def test_every_outcome_is_explained_on_the_page_of_the_guard():
    text = (DOCS / "explanation" / "guard.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    assert set(Outcome) - {"clean"} - set(re.findall(r"`([a-z_]+)`", " ".join(rows))) == set()


def test_every_variable_of_the_environment_that_is_ours_is_on_the_page():
    text = page("configuration.md")
    read = {
        name
        for path in SERVE.rglob("*.py")
        for name in re.findall(r"(?:SPECGATE|CONFORM)_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert {"SPECGATE_KEY", "SPECGATE_PORT"} <= read
    assert {name for name in read if f"`{name}`" not in text} == set()


def test_a_page_may_not_ask_for_a_block_that_does_not_exist(tmp_path):
    (tmp_path / "cli.md").write_text("<!-- generated: nothing -->\n<!-- end generated -->\n")
    with pytest.raises(ValueError, match="'nothing'"):
        pages.render(tmp_path / "cli.md")


def test_docstrings_are_split_into_text_and_attributes():
    intro, attributes = configuration.split_docstring(
        "One pool.\n\nMore.\n\nAttributes:\n    kind: What it\n        is.\n    url: Where: here."
    )
    assert intro == "One pool. More."
    assert attributes == {"kind": "What it is.", "url": "Where: here."}


def test_pages_use_commands_and_options_that_exist():
    commands = {name: {s for p in command.params for s in cli.names(p)} for name, command in cli.commands()}
    wrong = []
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = path.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
        in_blocks = re.findall(r"^ *(?:\.venv/bin/)?(specgate [^\n#]*)", blocks, re.MULTILINE)
        for line in (*in_blocks, *re.findall(r"`(specgate [^`\n]+)`", text)):
            name = max((name for name in commands if f"{line} ".startswith(f"{name} ")), key=len, default=None)
            options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", line))
            if name is None:
                is_group = any(command.startswith(" ".join(line.split()[:2]) + " ") for command in commands)
                wrong += [] if is_group or line.startswith("specgate COMMAND") else [f"{path.name}: {line}"]
            elif unknown := options - commands[name] - {"--help"}:
                wrong.append(f"{path.name}: {line}: {sorted(unknown)}")
    assert wrong == []


def test_pages_use_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set()
    for path in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = path.read_text(encoding="utf-8")
        named.update(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE))
    assert named - targets == set()


def test_yaml_examples_have_no_bare_off_where_a_word_is_meant():
    """YAML 1.1 reads `off` as false, and the configuration refuses that."""
    bare = [
        f"{path.name}: {line.strip()}"
        for path in DOCS.rglob("*.md")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\b(mode|history): off\b", line)
    ]
    assert bare == []
