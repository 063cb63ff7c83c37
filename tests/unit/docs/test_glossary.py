"""The code uses the words of docs/reference/glossary.md, and none of those that they replaced."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = [path for package in ("serve", "policies") for path in sorted((ROOT / package).rglob("*.py"))]

# Classes and functions that were named in private words, by the package in which the name would be a relapse.
RETIRED_NAMES = {
    "serve": """
        Asked Front Judge Judgement LocalJudge RayJudge Outflow Piece PieceReader QuarantineView RemoteRoute
        ReplicaRoute Sieve VerdictSink Watched read_on routes_of scope_of
    """,
    "serve.guard": "Expected Flow Streamed Whole",
    "serve.http1": "Call Connection Connections Target refusal",
    "serve.load": "RecoveryTrials",
    "serve.proxy": "Answer Take",
    "serve.quarantine": "Shares",
    "serve.routing": "Route",
}
# Modules of the flat layout, and the names that some had for a while.
RETIRED_MODULES = {
    "serve": """
        affinity asked attempts body connection connections counts exchange features frames front front_call front_head
        guarded guarding history in_place ingress integrity leases live_policy local pieces protocol quarantine_actor
        relay reservations router sieve sse upstream verdicts
    """,
    "serve.access": "rights",
    "serve.config": "layers names",
    "serve.engine": "checks scheduler sim_replica vllm_host vllm_parsers vllm_plugin vllm_tokenizer",
    "serve.gateway": "explanation",
    "serve.guard": "answer judgement",
    "serve.launch": "apart layers shapes",
    "serve.load": "trials",
    "serve.quarantine": "judge",
    "serve.tokenizer": "escaping guard kimi",
    "policies": "model_names turns",
}
RETIRED_WORDS = re.compile(r"\b(anew|sieve|judgements?|wish(?:es)?|twins?|glance)\b", re.IGNORECASE)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def definitions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def test_no_retired_name_is_defined():
    found = [
        f"{module_name(path)}.{name}"
        for path in FILES
        for name in definitions(path)
        if any(name in names.split() and is_in(module_name(path), package) for package, names in RETIRED_NAMES.items())
    ]
    assert found == []


def test_no_retired_module_exists():
    retired = {f"{package}.{name}" for package, names in RETIRED_MODULES.items() for name in names.split()}
    assert {module_name(path) for path in FILES} & retired == set()


def test_no_docstring_or_string_names_a_retired_module():
    retired = {f"{package}.{name}" for package, names in RETIRED_MODULES.items() for name in names.split()}
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, retired))) + r")\b(?!/)")
    found = [
        f"{module_name(path)}: {name}" for path in FILES for name in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_retired_words_do_not_return():
    found = [
        f"{module_name(path)}: {word}"
        for path in FILES
        for word in RETIRED_WORDS.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == ["policies.explain: wish"]  # a public key of `explain`


def test_a_word_has_one_entry():
    page = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^- \*\*(.+?)\*\*", page, re.MULTILINE)
    assert len(words) > 40
    assert sorted(set(words)) == sorted(words)
