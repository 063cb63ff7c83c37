"""Runs the cases of `specgate conform` against every gateway: `python -m bench.conform`.

Each gateway is started as `bench/peers.py` says, in front of its own scripted engine. Prints one line per gateway,
saves every outcome to `bench/results/conform.json`, writes the table of all cases to `bench/results/conformance.md`
and the totals into `docs/explanation/conformance.md`. With `--security` or `--api` it runs other cases instead, which
have a file and a table of their own.
"""

import argparse
import asyncio
import json
import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.peers import PEERS, ROOT, SPECGATE, Peer, PeerError, install, launched, version
from lab.conform import API_CASES, CASES, SECURITY_CASES, Case, CaseStatus, ConformanceReport, run, select
from lab.conform.lab import laboratory

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "explanation" / "conformance.md"
TABLES = RESULTS / "conformance.md"
MODEL = "conform"
# specgate twice: as one process, like the others, and as `specgate serve` starts it, with Ray Serve and HAProxy.
_REPLICA = ("{bin}/python", "-m", "bench.gateway.replica", "--config", "{config}", "--port", "{port}")
GATEWAYS = (replace(SPECGATE, command=_REPLICA), replace(SPECGATE, name="specgate on Ray Serve"), *PEERS)
BY_NAME = {gateway.name: gateway for gateway in GATEWAYS}
# By default litellm asks the engine in the client's own API; the cases are about the translation to chat.
_TO_CHAT = {"litellm": ("openai/{model}", "hosted_vllm/{model}, use_chat_completions_api: true")}
_MARK = {CaseStatus.PASS: "✓", CaseStatus.FAIL: "**✗**", CaseStatus.NOT_APPLICABLE: "–"}


@dataclass(frozen=True)
class Topic:
    """Cases that are run together.

    Attributes:
        cases: All of them.
        results: File with every outcome.
    """

    cases: tuple[Case, ...]
    results: Path

    def saved(self) -> list[dict[str, Any]]:
        """Returns what is known of each gateway, in the order of the tables."""
        found = json.loads(self.results.read_text()) if self.results.exists() else []
        by_name = {result["name"]: result for result in found}
        return [by_name[name] for name in BY_NAME if name in by_name]


TOPICS = {
    "chat": Topic(CASES, RESULTS / "conform.json"),
    **{
        name: Topic(cases, RESULTS / f"conform-{name}.json")
        for name, cases in {**API_CASES, "security": SECURITY_CASES}.items()
        if name != "chat"
    },
}
_TOTALS = re.compile(r"(?<=<!-- totals -->\n).*?(?=<!-- end -->)", re.DOTALL)


async def measure(peer: Peer, cases: list[Case]) -> ConformanceReport:
    """Start a gateway and run the cases against it."""
    async with laboratory("", peer.key, MODEL) as lab:
        with ExitStack() as stack:
            # In a thread: the engine runs in this event loop and has to answer while the gateway starts.
            running = await asyncio.to_thread(stack.enter_context, launched(peer, lab.engine.url, MODEL))
            lab.url = running.url
            return await run(lab, cases)


def measured(peer: Peer, cases: list[Case]) -> dict[str, Any]:
    """Returns a gateway's report as data, or the reason why it could not be started; that counts neither way."""
    try:
        install(peer)
        report = asyncio.run(measure(peer, cases))
    except PeerError as error:
        return {"name": peer.name, "error": str(error)}
    return {"name": peer.name, "version": version(peer), **report.to_dict()}


def table(results: list[dict[str, Any]], cases: tuple[Case, ...]) -> str:
    """Returns cases by gateways as a Markdown table."""
    shown = [result for result in results if "cases" in result]
    verdicts = [{row["case"]: CaseStatus(row["verdict"]) for row in result["cases"]} for result in shown]
    lines = [
        "| case | rule | " + " | ".join(f"{result['name']} {result['version']}" for result in shown) + " |",
        "|---|---|" + ":-:|" * len(shown),
    ]
    for case in cases:
        cells = [_MARK[column[case.name]] if case.name in column else "" for column in verdicts]
        lines.append(f"| {case.name} | {case.rule} | " + " | ".join(cells) + " |")
    lines.append("| **passed** | | " + " | ".join(map(_passed, shown)) + " |")
    lines += [f"\n{result['name']}: not measured. {result['error']}" for result in results if "error" in result]
    return "\n".join(lines) + "\n"


def totals() -> str:
    """Returns how many cases each gateway passes, topics by gateways, as a Markdown table."""
    found = {name: {result["name"]: result for result in topic.saved()} for name, topic in TOPICS.items()}
    shown = {name: result["version"] for results in found.values() for name, result in results.items()}
    names = [name for name in BY_NAME if name in shown]
    lines = [
        "| cases | " + " | ".join(f"{name} {shown[name]}" for name in names) + " |",
        "|---|" + ":-:|" * len(names),
        *(
            f"| `{topic}` | " + " | ".join(_passed(results.get(name, {})) for name in names) + " |"
            for topic, results in found.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _passed(result: dict[str, Any]) -> str:
    if "cases" not in result:
        return ""
    return f"{result['counts']['pass']} of {len(result['cases']) - result['counts']['n/a']}"


def save(result: dict[str, Any], topic: Topic) -> None:
    """Add one gateway's result to the files and the page; cases that did not run again keep what was seen before."""
    results = {earlier["name"]: earlier for earlier in topic.saved()}
    results[result["name"]] = merged(results.get(result["name"], {}), result, [case.name for case in topic.cases])
    ordered = [results[name] for name in BY_NAME if name in results]
    topic.results.write_text(json.dumps(ordered, ensure_ascii=False, indent=1) + "\n")
    write_tables()


def write_tables() -> None:
    """Write all tables anew from the saved outcomes."""
    tables = [f"## {name}\n\n{table(topic.saved(), topic.cases)}" for name, topic in TOPICS.items()]
    TABLES.write_text(
        "# Wire conformance, case by case\n\nWritten by `python -m bench.conform`.\n\n" + "\n".join(tables)
    )
    PAGE.write_text(_TOTALS.sub(lambda _: totals(), PAGE.read_text()))


def merged(earlier: dict[str, Any], result: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Returns a gateway's result with the rows of an earlier one that it lacks, in the order of `names`."""
    if "cases" not in earlier or "cases" not in result:
        return result
    rows = {row["case"]: row for row in (*earlier["cases"], *result["cases"])}
    cases = [rows[name] for name in names if name in rows]
    counts = Counter(row["verdict"] for row in cases)
    counted = {str(status): counts[status] for status in CaseStatus}
    return result | {"green": not counts[CaseStatus.FAIL], "cases": cases, "counts": counted}


def main() -> None:
    """Run the cases, save the results and update the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gateways", nargs="*", metavar="GATEWAY", help=f"of: {', '.join(BY_NAME)} (all)")
    parser.add_argument("--only", default="", help="comma-separated case names; the others keep their results")
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--api", choices=API_CASES, default="chat", help="run the cases of this API")
    topics.add_argument("--security", action="store_true", help="run the security cases instead")
    options = parser.parse_args()
    topic = TOPICS["security" if options.security else options.api]
    cases = select(topic.cases, [name for name in options.only.split(",") if name])
    for name in options.gateways or BY_NAME:
        peer = BY_NAME[name]
        if options.api != "chat" and name in _TO_CHAT:
            peer = replace(peer, config=peer.config.replace(*_TO_CHAT[name]))
        result = measured(peer, cases)
        print(name, result.get("counts") or result["error"], flush=True)
        save(result, topic)


if __name__ == "__main__":
    main()
