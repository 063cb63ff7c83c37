"""Names in calls that are nearly those of the prompt."""

import json
import string
from collections.abc import Callable
from cProfile import Profile
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve.config.guard import GuardConfig
from serve.guard.core import Outcome, Severity, check_answer
from serve.guard.core.argument_names import names_in
from serve.guard.core.near_copies import NearCopies
from serve.guard.core.prompt_text import PromptText

PATHS = """
serve/guard/core/guard.py
serve/guard/core/choice.py
serve/gateway/pipeline.py
models/kimi-k3/config.json
https://github.com/acme/router/pull/1183
"""
RECORDS = """
order #W2378156 of yusuf_rossi_9620, paid with credit_card_9513926, ticket TCK-2024-471313
trace 3f2a9c41-77d0-4e12-9b55-c0ffee12ab90, commit 9c2f41ab77d0e4129b55c0ff12ab90de45678901
account 100829223041, total 1523.75, call +1-415-555-0137, mail mia.chen87@example.com, host 10.21.37.144
fetch_invoice_totals at billing-4f1c9.internal.example.com
key call_Zk3vQ81mXw0PbL7tR5yHn2Ac
"""
PROMPT = PATHS + RECORDS


def prompt_of(text: str) -> PromptText:
    """Returns the prompt of a request with one message."""
    return PromptText(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())


def suspected(name: Any, prompt: str = PROMPT, **others: Any) -> str | None:
    """Returns the name of the prompt of which a call's name is a near copy."""
    slip = NearCopies(prompt_of(prompt)).first({"x": name, **others})
    return None if slip is None else slip.source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("models/kimi-kw/config.json", "models/kimi-k3/config.json"),
        ("serve/gaurd/core/guard.py", "serve/guard/core/guard.py"),
        ("serve/guard/core/choise.py", "serve/guard/core/choice.py"),
        ("serve/gateway/pipelines/pipeline.py", None),
        ("serve/serve/guard/core/choice.py", "serve/guard/core/choice.py"),
        ("call_Zk3vQ81mXw0PbL7tR5yHn2AcHn2Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("#W2387156", "#W2378156"),
        ("yusuf_rossi_9260", "yusuf_rossi_9620"),
        ("TCK-2024-473313", "TCK-2024-471313"),
        ("3f2a9c41-77d0-4e12-9b65-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("3f2a9c41-77d0-4e12-9b55-c0ffee12ab9", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("9c2f41ab77d0e4129b55c0ffff12ab90de45678901", "9c2f41ab77d0e4129b55c0ff12ab90de45678901"),
        (100829232041, "100829223041"),
        (1532.75, "1523.75"),
        ("mia.chen78@example.com", "mia.chen87@example.com"),
        ("call_Zk3vQ81mXw0PbLLLR5yHn2Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("git show 9c2f41ab77d0e4129b55c0ff12ab90de45678091", "9c2f41ab77d0e4129b55c0ff12ab90de45678901"),
        (["ok", {"deep": "10.12.37.144"}], "10.21.37.144"),
        ("serve/gateway/pipeline.qx", "serve/gateway/pipeline.py"),
        ("serve/guard/core/chbkqe.py", "serve/guard/core/choice.py"),
        ("zqjf_rossi_9620", "yusuf_rossi_9620"),
        ("yusuf_zqjxf_9620", "yusuf_rossi_9620"),
        ("XQZ-2024-471313", "TCK-2024-471313"),
        ("10.21.37.199", "10.21.37.144"),
        (1877.75, "1523.75"),
        ("https://github.com/acme/router/pull/9083", "https://github.com/acme/router/pull/1183"),
        ("cat serve/gaurd/core/choice.py | head", "serve/guard/core/choice.py"),
        ("cat serve/gaurd/core/choice.py", "serve/guard/core/choice.py"),
        ("python serve/gateway/pipelien.py", "serve/gateway/pipeline.py"),
        ("CONFIG=models/kimi-kw/config.json", "models/kimi-k3/config.json"),
        ("Please read serve/gaurd/core/choice.py first", "serve/guard/core/choice.py"),
        ("serve/guard/core/choic", "serve/guard/core/choice.py"),
        ("rve/gateway/pipeline.py", "serve/gateway/pipeline.py"),
        ("3f2a9c41-77d0-4e12-9b55-c0ffee12a", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("3f2a9c41-77d0-4e129b55-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("serve/guArd/core/guard.py", "serve/guard/core/guard.py"),
        ("models/kimi_k3/config.json", "models/kimi-k3/config.json"),
        ("models/kimik3/config.json", "models/kimi-k3/config.json"),
        ("serve.guard/core/guard.py", "serve/guard/core/guard.py"),
        ("https://github/com/acme/router/pull/1183", "https://github.com/acme/router/pull/1183"),
        ("serve/Guard/core/guard.py", "serve/guard/core/guard.py"),
        ("lling-4f1c9.internal.example.com", "billing-4f1c9.internal.example.com"),
        ("billing-4f1c9.internal.example.c", "billing-4f1c9.internal.example.com"),
        ("tch_invoice_totals", "fetch_invoice_totals"),
        ("fetch_invoice_tot", "fetch_invoice_totals"),
        ("callZk3vQ81mXw0PbL7tR5yHn2Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("call-Zk3vQ81mXw0PbL7tR5yHn2Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("serve/7guard/core/guard.py", "serve/guard/core/guard.py"),
        ("serve/guard/core/choice7.py", "serve/guard/core/choice.py"),
        ("serve/guard2/core/choice.py", "serve/guard/core/choice.py"),
        ("fetch_invoice7_totals", "fetch_invoice_totals"),
        ("billing-4f1c9.internal.eXample.com", "billing-4f1c9.internal.example.com"),
        ("Billing-4f1c9.internal.example.com", "billing-4f1c9.internal.example.com"),
        ("serve/GUARD/core/choice.py", "serve/guard/core/choice.py"),
        ("tCK-2024-471313", "TCK-2024-471313"),
        ("mia.chen87@Example.com", "mia.chen87@example.com"),
        ("billing_4f1c9.internal.example.com", "billing-4f1c9.internal.example.com"),
        ("billing4f1c9.internal.example.com", "billing-4f1c9.internal.example.com"),
        ("billing-4f1c9.internal.example/com", "billing-4f1c9.internal.example.com"),
        ("serve/guardcore/choice.py", "serve/guard/core/choice.py"),
        ("serve/guard/core/choice.PY", "serve/guard/core/choice.py"),
        ("serve/guard-core/choice.py", "serve/guard/core/choice.py"),
        ("serve/guard/core/choice-py", "serve/guard/core/choice.py"),
        ("mia.chen87@example-com", "mia.chen87@example.com"),
        ("serve/guard/core/choice.pypy", "serve/guard/core/choice.py"),
        ("_Zk3vQ81mXw0PbL7tR5yHn2Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("fetch_invoice_to", "fetch_invoice_totals"),
        ("https://github.com/acme/router/pu", "https://github.com/acme/router/pull"),
        ("chenmia.chen87@example.com", "mia.chen87@example.com"),
        ("mimia.chen87@example.com", "mia.chen87@example.com"),
        ("10082922304141", "100829223041"),
        ("#W2372372372378156", "#W2378156"),
        ("yusuf_rossi_9620620620620", "yusuf_rossi_9620"),
        ("+1-415-555-0137777", "+1-415-555-0137"),
        ("TCK-2024-471313471313471313", "TCK-2024-471313"),
        ("100829whom223041", "100829223041"),
        ("lessmodels/kimi-k3/config.json", "models/kimi-k3/config.json"),
        ("homeyusuf_rossi_9620", "yusuf_rossi_9620"),
        ("serve/gatewayeline.py", "serve/gateway/pipeline.py"),
        ("serve/guardust/choice.py", "serve/guard/core/choice.py"),
        ("mia.chen87@examplehaus", "mia.chen87@example.com"),
        ("mia-chen87@example.com", "mia.chen87@example.com"),
        ("https:/github.com/acme/router/pull/1183", "https://github.com/acme/router/pull/1183"),
        ("YUSUF_rossi_9620", "yusuf_rossi_9620"),
        ("Yusuf_rossi_9620", "yusuf_rossi_9620"),
        ("YUSUF_ROSSI_9620", None),
        ("yusuf.rossi_9620", "yusuf_rossi_9620"),
        ("fetch_Invoice_totals", "fetch_invoice_totals"),
        ("fetch_INVOICE_totals", "fetch_invoice_totals"),
        ("FETCH_INVOICE_TOTALS", None),
        ("Serve/guard/core/choice.py", "serve/guard/core/choice.py"),
        ("models/kimi-k3/kimi-k3/config.json", "models/kimi-k3/config.json"),
        ("invoice_totals", None),
        ("fetch_pay_invoice_totals", None),
        ("serve/gateway/p/pipeline.py", "serve/gateway/pipeline.py"),
        ("fetch_i_invoice_totals", "fetch_invoice_totals"),
    ],
)
def test_one_slip_in_a_name_of_the_prompt_is_suspected(name: Any, source: str | None) -> None:
    assert suspected(name) == source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("docsindex.rst", "docs/index.rst"),
        ("final_report-pdf", "final_report.pdf"),
        ("final_report/pdf", "final_report.pdf"),
        ("rama602-555-0831", "602-555-0831"),
        ("taylor.brooks.com", "taylor.brooks@aol.com"),
        ("weitingacew@aol.com", "weiting.lin@aol.com"),
        ("http//plgah.ca/a", "http://plgah.ca/a"),
        ("http:/plgah.ca/a", "http://plgah.ca/a"),
        ("intlHAT266", "HAT266"),
        ("call show_item Zk3vQ81mXw0PbL7tR5yHm2Ac", "Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("docs_index.rst", None),
        ("US602555083", None),
        ("backup2024-05-01", None),
        ("b10488", None),
        ("gpu_tp2dp4ep8", None),
    ],
)
def test_a_sign_or_letters_too_many_or_too_few_are_suspected_where_nobody_writes_so(
    name: str, source: str | None
) -> None:
    said = "docs/index.rst final_report.pdf 602-555-0831 602555083 HAT266 2024-05-01 b10434 gpu_dp4ep8"
    said += " taylor.brooks@aol.com weiting.lin@aol.com http://plgah.ca/a"
    assert suspected(name, f"see {said} Zk3vQ81mXw0PbL7tR5yHn2Ac of it") == source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("models/kimi\u2011k3/config.json", "models/kimi-k3/config.json"),
        ("3f2a9c41\u201377d0\u20134e12\u20139b55\u2013c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("serve/\u200bguard/core/guard.py", "serve/guard/core/guard.py"),
        ("yusuf_ross\u00adi_9620", "yusuf_rossi_9620"),
        ("yusuf_ro ssi_9620", "yusuf_rossi_9620"),
        ("yusuf_rossi_962 0", "yusuf_rossi_9620"),
        ("fetch_invoice _totals", "fetch_invoice_totals"),
        ("3f2a 9c41-77d0-4e12-9b55-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("#W23781 56", "#W2378156"),
        ("+1-415- 555-0137", "+1-415-555-0137"),
        ("1008292230 41", "100829223041"),
        ("serve/guard/core/ch\uff4fice.py", "serve/guard/core/choice.py"),
        ("serve/ guard/core/choice.py", "serve/guard/core/choice.py"),
        ("serve/guard/core/choice .py", "serve/guard/core/choice.py"),
        ("serve/guard/guard/guard/guard/core/choice.py", "serve/guard/core/choice.py"),
        ("yusufyusufyusuf_rossi_9620", "yusuf_rossi_9620"),
        ("100829829829223041", "100829223041"),
        ("cat serve/guard/core/choice.py", None),
    ],
)
def test_a_name_in_signs_that_nobody_means_is_suspected_although_it_differs_in_many(name: str, source: str) -> None:
    assert suspected(name) == source


@pytest.mark.parametrize(
    "patch",
    [
        "*** Begin Patch\n*** Update File: {}\n@@\n-a\n+b\n*** End Patch\n",
        "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: {}\n*** End Patch\nEOF\n",
        "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n",
    ],
)
def test_the_file_that_a_patch_changes_is_a_name_and_one_that_it_adds_may_be_new(patch: str) -> None:
    path = "serve/guard/core/choice.py"
    assert suspected(patch.format(path)) is None
    assert suspected(patch.format("serve/guard/core/choixe.py")) == path
    assert suspected("*** Begin Patch\n*** Add File: serve/guard/core/choixe.py\n+b\n*** End Patch\n") is None


@pytest.mark.parametrize("text", ["docker rmi sha256:{}", "Pull sha256:{} again", "image: sha256:{}\nname: a\n"])
def test_a_digest_is_a_name_wherever_it_stands(text: str) -> None:
    digest = "9c2f41ab77d0e4129b55c0ff12ab90de456789019c2f41ab77d0e4129b55c0ff"
    assert suspected(text.format(digest.replace("e412", "e142", 1)), f"use sha256:{digest} here") == digest
    assert suspected(text.format(digest), f"use sha256:{digest} here") is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("guard/serve/core/choice.py", "serve/guard/core/choice.py"),
        ("829100223041", "100829223041"),
        ("fetch_totals_invoice", "fetch_invoice_totals"),
        ("#W8152376", "#W2378156"),
        ("#W7238156", "#W2378156"),
    ],
)
def test_tokens_in_each_others_place_are_suspected(name: str, source: str | None) -> None:
    assert suspected(name) == source


@pytest.mark.parametrize(
    ("name", "said", "source"),
    [
        ("lettestar/middleware/base.py", "starlette/middleware/base.py", "starlette/middleware/base.py"),
        (
            "com/gfunctional/son/LimitTest.java",
            "com/gson/functional/LimitTest.java",
            "com/gson/functional/LimitTest.java",
        ),
        ("docs/contextreq.rst", "docs/reqcontext.rst, docs/index.rst", "docs/reqcontext.rst"),
        ("src/pages/tadeup.tsx", "src/pages/update.tsx", "src/pages/update.tsx"),
        ("CorpTech", "TechCorp", None),
        ("docs/indices.rst", "docs/websockets.rst", None),
    ],
)
def test_the_same_characters_in_another_order_are_suspected(name: str, said: str, source: str | None) -> None:
    assert suspected(name, f"see {said} of it") == source


def test_the_last_digits_of_a_number_may_come_before_the_three_that_precede_them() -> None:
    assert suspected("#W2376815", "order #W2378156") == "#W2378156"
    assert suspected("86322", "the zip code is 32286") == "32286"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("9513 9269 4481 2207", "card 9513926944812207"),
        ("DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
        ("10.10.10.10", "10.10 of them"),
        ("../../../src/main.py", "../src/main.py"),
        ("121212", "12 and 1212 of them"),
        ("../../../../lib/util.py", "../../lib/util.py"),
        ("9123 4567", "91234567"),
        ("python 3.11", "python3.11"),
        ("SW1A 1AA", "SW1A1AA"),
        ("UA 1234", "UA1234"),
        ("10.10.10.107", "10.107"),
        ("#W2500000", "#W2500"),
        ("listUser", "userList"),
        ("serve/guard/core/choice2.py", "serve/guard/core/choice.py"),
        ("docs/r\u00e9sum\u00e9\u2011x.md", "docs/r\u00e9sum\u00e9-x.md"),
    ],
)
def test_what_people_write_in_more_than_one_way_is_no_slip(name: str, said: str) -> None:
    assert suspected(name, f"see {said} for more") is None


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("serve/core/choice.py", "serve/guard/core/choice.py"),
        ("serve/choice.py", "serve/guard/core/choice.py"),
        ("https://github.com/router/pull/1183", "https://github.com/acme/router/pull/1183"),
        ("/repo/guard/core/choice.py", None),
        ("/core/choice.py", None),
        ("guard/core/choice.py", None),
    ],
)
def test_a_path_without_a_folder_is_suspected_and_one_from_another_root_is_not(name: str, source: str | None) -> None:
    assert suspected(name) == source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("surve/guard/core/chpice.py", "serve/guard/core/choice.py"),
        ("3e2a9c41-77d0-4e12-9b55-c0ffee12ac90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("3f2a9c41-4e12-77d0-9b55-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("3f2a9c41-77d0-9b55-4e12-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("3f2a9c41-77f3-4e12-9d25-c0ffee12ab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("call_Yk3vQ81mXw0PbL7tR5yHn3Ac", "call_Zk3vQ81mXw0PbL7tR5yHn2Ac"),
        ("#W3378146", "#W2378156"),
        ("TCK-2034-473313", "TCK-2024-471313"),
        (110829223051, "100829223041"),
        ("models_kimi-k3_config.json", None),
        ("serve/cabin/core/pipe.py", None),
    ],
)
def test_two_slips_in_a_long_name_are_suspected_if_only_one_name_is_that_near(name: Any, source: str | None) -> None:
    assert suspected(name) == source


def test_two_slips_between_two_names_are_nobodys_copy() -> None:
    prompt = "id 7f3a9c41e2, id 7f3a9c45e8, see all"
    assert suspected("7b3a9c4fe2", prompt.replace("45e8", "4fe8")) is None


@pytest.mark.parametrize(
    "name",
    [
        "serve/guard/core/guard.py",
        "guard.py",
        "core/guard.py",
        "/repo/serve/guard/core/guard.py",
        "serve/guard/core/guard_test.py",
        "serve/guard/core/guard.pyi",
        "serve/guard/core/Guard.py",
        "serve/guard/core/guard.py/",
        "serve.guard.core.guard",
        "https%3A%2F%2Fgithub.com%2Facme%2Frouter%2Fpull%2F1183",
        "fetch_invoice_total",
        "invoice_totals",
        "internal.example.com",
        "serve/guard/core/guards.py",
        "serve/guard/core/pipeline.py",
        "models/kimi-k4/config.json",
        "https://github.com/acme/router/pull/1184",
        "TCK-2024-471314",
        "W2378156",
        "#w2378156",
        "1,523.75",
        "10.21.37.1",
        "9c2f41ab",
        "something else",
        "42",
        None,
        True,
        pytest.param(10**5000, id="long"),
        float("inf"),
    ],
)
def test_what_the_prompt_says_and_what_is_made_of_it_on_purpose_is_not(name: Any) -> None:
    assert suspected(name) is None


GIVEN_ON_PURPOSE = {
    "K8sServiceDiscovery": "K8sPodIPServiceDiscovery",
    "GetFloat64": "GetFloat32",
    "actions/setup-python@v3": "actions/setup-python@v4",
    "build-2025-05-17-v1": "build-2025-05-27-v1",
    "web_search_20260209_param.py": "web_search_20260318_param.py",
    "https://github.com/acme/sdk/compare/v1.50.1...v1.50.2": "https://github.com/acme/sdk/compare/v1.50.2...v1.51.0",
    "0x023301": "0x023400",
    "us-central1-a": "us-central1-c",
    "https://github.com/acme/tool/tree/master/docs": "https://github.com/acme/tool/tree/main/docs",
    "docs/es/index.md": "docs/en/index.md",
    "docs/adr/0074-set-aside.md": "docs/adr/0071-set-aside.md",
    "card_dk83f5c2a1_blue": "note_dk83f5c2a1_blue",
    "https://a.example/q?x=%20a": "https://a.example/q?x=%2Fa",
    "TestRenderAttachment": "TestRenderUTF8Attachment",
    "black==21.10b0": "black==21.11b1",
    "notifications": "notification1",
    "v0.32.1-rc.0": "0.32.1-rc.0",
    "locks/lock.314.toml": "locks/lock.31x.toml",
    "664a062ac74a8ad104e0e80f": "664a062ac74a8ad104e0e80e",
    "keywords/indentifiers": "as soft keywords/identifiers are no longer supported",
    "tests/onig.test": "tests/manonig.test linguist-generated=true",
    "stdint.h": "#include <stdio.h>",
    "read_utf16le_line": "read_utf16_line(&mut reader, 0x00);",
    "-10E-1000010001": "-10E-1000000001",
    "test1228": "test3223 test3224 test3228",
    "COLUMNS=300": "COLUMNS=10000",
    "https://x.example.com/q?id=9f2c41ab&sort=asc": "https://x.example.com/q?id=9f2c41ab&sort=desc",
    "1717171717": "1717175317",
    "ERLANG_VERSION=20": "ERLANG_VERSION=25",
    "--ingress.proxyreadtimeout=60": "--ingress.proxysendtimeout=60",
    "ZendDiactorosPsr17Factory": "LaminasDiactorosPsr17Factory",
    "zackse@gmail.com": "cjlarose@gmail.com",
    "slim:4.0.0-alpha": "slim:4.0.0-beta",
    "Minitest/AssertOutput:": "Minitest/AssertOperator:",
    "/src/doc/build": "/doc/build",
    "4CE292301EF4A386008DA555": "4CE292381EF4B116008DA555",
    "ns::json_abi_v3_11_2": "ns::json_abi_v3_11_3",
    "my-other-package": "my_other_package",
    "EnvironmentFile=/etc/sysconfig/node_exporter": "EnvironmentFile=-/etc/sysconfig/node_exporter",
    "https://a.example.com/acme/tool/blob/master/src/main/RunAfters.java": (
        "https://a.example.com/acme/tool/blob/HEAD/src/main/RunAfters.java"
    ),
    "myst-parser==2.0.0": "myst_parser==2.0.0",
    "documentation/migration-guides/axios.md": "documentation/migration-guides/nodejs.md",
    "src/werkzeug/debug/console.py": "src/werkzeug/debug/tbtools.py",
    "src/werkzeug/routing/rules.py": "src/werkzeug/routing/converters.py",
    "4F36C3A7E075BA6452D10EEB81E7F189FF489B74": "4F36C3A7E075BA6452D10EEB81E7F189FF489B83",
}


@pytest.mark.parametrize("source", GIVEN_ON_PURPOSE)
def test_what_people_change_in_a_name_on_purpose_is_no_slip(source: str) -> None:
    assert suspected(GIVEN_ON_PURPOSE[source], f"see {source} for more") is None


def test_a_call_that_names_both_means_the_other_one() -> None:
    assert suspected("serve/gaurd/core/guard.py") is not None
    assert suspected("serve/gaurd/core/guard.py", source="mv serve/guard/core/guard.py elsewhere") is None


@pytest.mark.parametrize(
    "line",
    [
        '\t"{}"',
        "* see [{0}]({0})",
        "- `{}`: an owner",
        "// of {}",
        "# of {}",
        'icon = "{}"',
        "open({}, [",
        "[#1]: {}",
        "{} v1 h1:ScB/8o8olJvc+CQPWrK3fPZNfh7qgwCrY0zJmoEQLSE=",
    ],
)
def test_in_a_line_of_a_file_only_opaque_names_are_copies(line: str) -> None:
    assert suspected(line.format("serve/gaurd/core/guard.py")) is None
    assert suspected(line.format("call_Zk3vQ81mXw0PbL7tR5yHn2Ae")) is not None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a fix of CVE-2026-34073\n", "CVE-2026-32597"),
        ("GET = 0b00_0000_0100;\n", "0b0_0000_0100"),
        ("r2770_gitignore_error, all of it {", "r3067_gitignore_error"),
        ("see GO-2026-5942\n", "GO-2026-5026"),
        ("packUInt16UInt16(left)\n", "packUInt16UInt8"),
        ("NGX_HTTP_VERSION_20\n", "NGX_HTTP_VERSION_10"),
        ("0x30000010L\n", "0x3000001fL"),
        ("\ufeffSystem.CommandLine.Binding", "System.CommandLine.Binding"),  # begins with a byte order mark
        ('b"25716f358c32750"\n', "25716f358c32750e"),
        (
            "MIIDXTCCAkWgAwIBAgIJAKL0UG+mRkmQMA0GCSqGSIb3DQEBCwUAMEUxCzAJMPc0",
            "MIIDXTCCAkWgAwIBAgIJAKL0UG+mRkmQMA0GCSqGSIb3DQEBCwUAMEUxCzAJKEQ0",
        ),
    ],
)
def test_what_a_file_has_of_its_own_is_no_copy(written: str, said: str) -> None:
    assert suspected(written, f"see {said}") is None


def test_numbers_in_groups_are_names() -> None:
    assert suspected("9513 9269 4481 2207", "card 9513 9296 4481 2207") == "9513 9296 4481 2207"


@pytest.mark.parametrize(("end", "is_meant"), [("v2", True), ("v31", False), ("t5", False), ("vi", False)])
def test_a_path_may_have_the_next_version_and_no_other_word_for_one(end: str, is_meant: bool) -> None:
    source = "http://queue.worker.svc:4821/v1"
    assert suspected(f"http://queue.worker.svc:4821/{end}", f"ask {source} for it") == (None if is_meant else source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (".github/workflowsuters.yml", ".github/workflows/test.yml"),
        ("com/googleson/JsonObject.java", "com/google/gson/JsonObject.java"),
        ("-555-0137", "415-555-0137"),
    ],
)
def test_words_that_run_into_each_other_and_a_lost_area_are_suspected(name: str, source: str) -> None:
    assert suspected(name, f"see {source} for more") == source


@pytest.mark.parametrize(
    ("name", "source"),
    [("getuserfile", None), ("preorder-list_7", None), ("tool_call", None), ("src/main/g/parts/one.py", None)],
)
def test_what_may_be_meant_where_words_join_is_no_slip(name: str, source: str | None) -> None:
    assert suspected(name, "get_user_profile, order-list_7, tool_calls, src/main/parts/one.py") == source


def test_what_only_keys_and_roles_of_the_request_say_is_no_source() -> None:
    message = {"role": "assistant", "content": "done", "tool_calls": [], "reasoning_content": "so"}
    prompt = PromptText(json.dumps({"messages": [message], "max_completion_tokens": 9}).encode())
    for name in ("tool_cals", "reasoning_contnt", "max_completoin_tokens"):
        assert NearCopies(prompt).first({"x": name}) is None
    message["content"] = "tool_calls"
    prompt = PromptText(json.dumps({"messages": [message]}).encode())
    slip = NearCopies(prompt).first({"x": "tool_cals"})
    assert slip is not None


def test_versions_dates_and_round_numbers_are_nobodys_copies() -> None:
    prompt = "tox==4.18.0 since 2024-05-15, v2.0.0, 250000 in all"
    assert [suspected(name, prompt) for name in ("tox==4.23.0", "2024-05-16", "v2.1.0", 260000)] == [None] * 4


def test_a_file_that_is_written_may_have_a_new_name_and_one_that_is_read_may_not() -> None:
    prompt = "see src/parsing/annotated_value.py"
    assert suspected("src/parsing/annotxqed_value.py", prompt) == "src/parsing/annotated_value.py"
    assert suspected("src/parsing/annotxqed_value.py", prompt, content="a = 1\nb = 2\n") is None


@pytest.mark.parametrize("path", ["src/GettableProperty.cs", "src/CSV/CSV/rows.cs", "src/deep/GetableProperty.cs"])
def test_a_new_file_may_have_any_name_and_an_edited_one_may_not(path: str) -> None:
    prompt = "src/GetableProperty.cs src/CSV/rows.cs"
    assert suspected(path, prompt, content="a\nb\n") is None
    edited = "src/GettableProperty.cs"
    assert suspected(edited, prompt, old="a\nb\n", new="a\nc\n") == "src/GetableProperty.cs"


def test_another_way_to_write_the_same_characters_is_no_slip() -> None:
    assert suspected("docs/résumé_2024_final.md", "see docs/résume\u0301_2024_final.md") is None
    assert suspected("docs/rаsumé_2024_final.md", "see docs/resumé_2024_final.md") is not None


def test_a_name_with_two_neighbours_is_one_of_a_row() -> None:
    assert suspected("rec-77aa31", "rec-77aa30, rec-77aa39") is None


def test_in_what_a_call_writes_only_opaque_names_are_looked_up() -> None:
    text = "def f(value_one):\n    return other_name, 'serve/guard/x.py', 'call_Zk3vQ81mXw0PbL7tR5yHn2Ac'\n"
    assert [*names_in({"content": text})] == ["call_Zk3vQ81mXw0PbL7tR5yHn2Ac"]


OPAQUE = st.text(string.ascii_lowercase + string.digits, min_size=16, max_size=40).filter(
    lambda text: 2 <= sum(map(str.isdigit, text)) <= len(text) - 2 and len(set(text)) > 8
)


@given(OPAQUE, st.data())
def test_any_other_character_within_an_opaque_name_is_found(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(name) - 2))
    other = data.draw(st.sampled_from([each for each in "aeqz" if each != name[place]]))
    slip = f"{name[:place]}{other}{name[place + 1 :]}"
    assert suspected(slip, f"first {name}, and then\nmore of it") == name


@given(
    st.from_regex(r"[a-f\d./:@-]{3,8}[\d²٣.]{1,4}[a-f\d./:@-]{3,8}", fullmatch=True),
    st.text("12²٣.", max_size=4),
    st.data(),
)
@example("10.21.113.6", "11.4.1", None)
@example("10.21.377.144", "²", None)
def test_no_difference_between_two_names_makes_it_fail(name: str, other: str, data: Any) -> None:
    place = data.draw(st.integers(1, len(name) - 2)) if data else 7
    suspected(name, f"see {name[:place]}{other}{name[place + len(other) :]} of it")


@given(st.text("ab/1-. \n_", max_size=300), st.recursive(st.text("ab/1-._ \n") | st.integers(), st.lists))
def test_nothing_in_prompt_or_arguments_makes_it_fail(prompt: str, arguments: Any) -> None:
    NearCopies(prompt_of(prompt)).first({"x": arguments})


@pytest.mark.parametrize(
    "name",
    [
        "serve/core/newer.py",
        "serve/core/choice.py",
        "serve/core/part_x.py",
        "serve/lab/7/choice.py",
        "lab/core/part_7.py",
    ],
)
def test_a_new_name_costs_little_however_many_names_are_like_it(name: str) -> None:
    """Prompts of agents list whole trees; what is counted is calls of functions, whatever else the machine does."""
    costs = []
    for most in (100, 3000):
        tree = "\n".join(f"serve/core/part_{each}.py lab/{each}/choice.py" for each in range(most))
        costs.append(calls_of(lambda tree=tree: suspected(name, tree)))
    assert costs[1] < costs[0] + 3000


def calls_of(work: Callable[[], object]) -> int:
    """Returns how many functions are called, those of C as well."""
    profile = Profile(builtins=True)
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def test_what_json_hides_is_found_in_the_text_of_messages_and_of_earlier_calls() -> None:
    call = {"function": {"name": "read", "arguments": json.dumps({"path": "C:\\données\\brève.txt", "n": 1})}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "see\nsrc/été.py"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    prompt = PromptText(json.dumps({"messages": messages}).encode())
    assert not prompt.says("src/été.py")
    assert suspected("src/été.py", prompt.read()) is None
    assert prompt.says("text")
    assert "brève" in prompt.read()


ADDRESS = "https://git.example.com/acme/router/pull/1183"
PICTURED = "notes/🚀-launch/rollout_plan.md"
SPACED = "/Users/mia/My Orders/Cache Report 7291.pdf"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('{"path": "serve/gaurd/core/choice.py", "n": 1}', "serve/guard/core/choice.py"),
        ('["serve/gaurd/core/choice.py"]', "serve/guard/core/choice.py"),
        ('{"amount": 1523.57}', None),  # may be computed
        ("{" * 900, None),
        (f"Please look at {ADDRESS.replace('1183', '1138')} and answer.", ADDRESS),
        ("Write to mia.chen87@exampel.com about it.", "mia.chen87@example.com"),
        (PICTURED.replace("plan", "plwn"), PICTURED),
        (SPACED.replace("Orders", "Orbers"), SPACED),
        (SPACED, None),
        ("SELECT * FROM files WHERE path = 'serve/gaurd/core/choice.py'", "serve/guard/core/choice.py"),
        ("10.21.37.144:8835", "10.21.37.144:8385"),
    ],
)
def test_names_in_json_prose_and_queries_are_looked_up_and_those_with_pictures_and_spaces(
    text: str, source: str | None
) -> None:
    assert suspected(text, f"{PROMPT}{ADDRESS}\n{PICTURED}\n{SPACED}\n10.21.37.144:8385") == source


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("9c2f41ab77d0e4129b5d3e07912b90de45678901", "9c2f41ab77d0e4129b55c0ff12ab90de45678901"),
        ("3f2a9c41-77d0-4e12-9b55-c0f4710dab90", "3f2a9c41-77d0-4e12-9b55-c0ffee12ab90"),
        ("TCK-2024-0471313", "TCK-2024-471313"),
        ("mia.chen87@example.org", "mia.chen87@example.com"),
        ("mia.chen87@acme.org", None),  # who moved there
        ("https://docs.example.org/7/core", "https://docs.example.com/7/core"),
        ("billing-4f1c9.internal.example.net", "billing-4f1c9.internal.example.com"),
        ("shop.billing.example.io", "shop.billing.example.de"),
        ("MIA.chen87@example.com", "mia.chen87@example.com"),
        ("lib/Acme/web/UserPage.java", "lib/acme/web/UserPage.java"),
        ("serve/web/routerqd", "serve/web/router.ts"),
        ("serve/guard/core/guard..py", "serve/guard/core/guard.py"),
        ("serve/web/router.t", "serve/web/router.ts"),
    ],
)
def test_another_middle_of_a_hash_a_zero_another_domain_or_ending_and_a_stray_capital_are_slips(
    name: str, source: str | None
) -> None:
    others = "see acme.org, or any org, https://docs.example.com/7/core, serve/web/router.ts"
    others += " lib/acme/web/UserPage.java shop.billing.example.de"
    assert suspected(name, f"{PROMPT}{others}") == source


def written_by_php(body: str) -> str:
    return body.replace("/", "\\/")


def written_by_dotnet(body: str) -> str:
    return body.replace("+", "\\u002B").replace("&", "\\u0026").replace("'", "\\u0027")


@pytest.mark.parametrize("written", [str, written_by_php, written_by_dotnet])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("serve/gaurd/core/choice.py", "serve/guard/core/choice.py"),
        ("serve/guard/core/choice.py", None),
        ("src/other/thing.tsx", None),
        ("c++/src&docs/gaurd.py", "c++/src&docs/guard.py"),
        ("c++/src&docs/guard.py", None),
    ],
)
def test_however_an_encoder_escapes_a_body_its_names_are_found(written: Any, name: str, source: str | None) -> None:
    messages = [{"role": "user", "content": f"{PROMPT}\nc++/src&docs/guard.py"}]
    prompt = PromptText(written(json.dumps({"messages": messages})).encode())
    slip = NearCopies(prompt).first({"x": name})
    assert (slip and slip.source) == source


@given(
    st.text("ab7/\\+&'é中 .:-", min_size=1), st.sampled_from([str, written_by_php, written_by_dotnet]), st.booleans()
)
def test_what_the_body_shows_of_a_text_is_all_that_the_text_has(text: str, written: Any, ascii_only: bool) -> None:
    """Decoding a prompt takes longer than all else, so it is done only where JSON may hide a name."""
    body = json.dumps({"messages": [{"role": "user", "content": f"see {text} ends"}]}, ensure_ascii=ascii_only)
    prompt = PromptText(written(body).encode())
    assert not prompt.shows(text) or prompt.writing.has(text)


@pytest.mark.parametrize(
    "name", ["+1-415-555-0137", "C:\\Users\\mia\\report_2291.xlsx", "docs/données.md", "报告/二.md"]
)
def test_a_name_that_the_prompt_has_is_seen_without_decoding_it(name: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": f"see {name}, please"}]}, ensure_ascii=False)
    prompt = PromptText(body.encode())
    assert prompt.says(name)
    assert prompt.shows(name) == ("\\" not in name)


@pytest.mark.parametrize("nested", [0, 1, 2])
@pytest.mark.parametrize(
    ("ahead", "behind"), [("\n", "\n"), ("\t", "\r"), ('"', '",'), ("\u2028", "\u00e9"), ("在", "文")]
)
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("weights/kimi-kw/config.json", "weights/kimi-k3/config.json"),
        ("nerve/guard/core/chioce.py", "nerve/guard/core/choice.py"),
        ("runs/8f3b2c71/part-119377.bin", "runs/8f3a2c71/part-129377.bin"),
        ("rest/core/choice.py", "rest/guard/core/choice.py"),
    ],
)
def test_whatever_a_name_stands_between_it_is_found(
    name: str, source: str, ahead: str, behind: str, nested: int
) -> None:
    """Results of tools are JSON as often as not, whose escapes are escaped again in the body."""
    text = f"see{ahead}{source}{behind}and so on"
    for _ in range(nested):
        text = json.dumps({"output": text})
    slip = NearCopies(prompt_of(text)).first({"x": name})
    assert slip is not None
    assert slip.source.endswith(source)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"messages": [{"content": 1}]}', b'{"messages": 3}', b'{"messages": [{"content": "\xff"}]}']
)
def test_a_body_of_another_shape_has_no_text(body: bytes) -> None:
    assert PromptText(body).read() == ""


def answer_with(path: str) -> dict[str, Any]:
    function = {"name": "read", "arguments": json.dumps({"path": path})}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


@pytest.mark.parametrize(
    ("setting", "severity"), [("off", None), ("count", Severity.NOTE), ("rerun", Severity.SUSPECT)]
)
def test_a_near_copy_is_ignored_counted_or_rerun_as_configured(setting: Any, severity: Severity | None) -> None:
    tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    request = {"messages": [{"role": "user", "content": PROMPT}], "tools": [tool]}
    verdict = check_answer(GuardConfig(near_copies=setting), request, answer_with("models/kimi-kw/config.json"))
    assert [defect.severity for defect in verdict.defects] == ([severity] if severity else [])
    assert verdict.outcome is (Outcome.NEAR_COPY if severity else Outcome.CLEAN)
    assert "kimi" not in " ".join(defect.detail for defect in verdict.defects)
    assert check_answer(GuardConfig(near_copies=setting), request, answer_with("models/kimi-k3/config.json")).good


WINDOWS = "C:\\Users\\new_mia\\report_2291.xlsx"


@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize(
    ("name", "source"),
    [
        (WINDOWS, None),
        ("C:\\Users\\new_mai\\report_2291.xlsx", WINDOWS),
        ("C:\\Users\\new_mia\\report_2219.xlsx", WINDOWS),
        ("C:\\Users\\report_2291.xlsx", WINDOWS),
        ("C:\\Users\\new_mia/report_2219.xlsx", WINDOWS),
        ("C:\\Users/new_mia\\report_2291.xlsx", None),
        ("C:\\Users\\new_mia\\totals.csv", None),
        ("C:\\Users\\new_mia\\report_2291.xlsx.bak", None),
        ("D:\\ledger\\north_7291.csv", None),
        ("\\\\store\\north\\ledger_4471.csv", None),
        ("\\\\store\\north\\ledger_4417.csv", "\\store\\north\\ledger_4471.csv"),
    ],
)
def test_a_path_of_windows_is_looked_up_however_its_backslashes_are_written(
    nested: int, name: str, source: str | None
) -> None:
    text = f"first\n{WINDOWS}\nD:/ledger/north_7291.csv\n\\\\store\\north\\ledger_4471.csv\nlast"
    prompt = json.dumps({"files": text}) if nested else text
    assert suspected(name, prompt) == (None if source is None else source.replace("\\", "/"))


def test_a_call_that_names_a_path_of_windows_rightly_as_well_means_the_other_one() -> None:
    moved = WINDOWS.replace("2291", "2292x")
    assert suspected(moved, f"move {WINDOWS}", source=WINDOWS) is None
    assert suspected(moved, f"move {WINDOWS}") is not None


def test_only_escapes_of_its_own_signs_hide_a_name() -> None:
    prompt = PromptText(b'{"messages": [{"role": "user", "content": "\\u00e9 \\uD83D\\uDE80 \\u002B"}]}')
    assert all(prompt.shows(name) for name in ("docs/e\u0435.md", "a&b"))
    assert not any(prompt.shows(name) for name in ("\u00e9t\u00e9.py", "a/\U0001f680.md", "c++"))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("docs/adr/0106-near-COPIES.md", "docs/adr/0106-near-copies.md"),
        ("docs/adr/0106-NEAR-copies.md", "docs/adr/0106-near-copies.md"),
        ("docs/adr/README.md", None),
        ("tests/unit/gateway_pipeline.py", "tests/unit/gateway/test_pipeline.py"),
        ("tests/unit/gateway_queue.py", None),
    ],
)
def test_a_word_in_capitals_among_others_and_a_folder_that_ran_into_a_file_are_no_new_names(
    name: str, source: str | None
) -> None:
    prompt = "docs/adr/0106-near-copies.md, docs/adr/readme.md, tests/unit/gateway/test_pipeline.py"
    assert suspected(name, prompt) == source
    assert suspected(name, prompt, content="one\ntwo\n") is None
