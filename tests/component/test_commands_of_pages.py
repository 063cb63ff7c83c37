"""Every command of page one and of the tutorials is run by CI, or it is said here why it can't be."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.stack import listening
from typer.testing import CliRunner

from lab.sim.app import build_sim_app
from lab.sim.settings import SimSettings
from serve.cli.main import app
from serve.config import yaml_files
from serve.config.gateway import GatewayConfig, args_of
from serve.gateway.ingress import GatewayReplica

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
LAPTOP = "http://127.0.0.1:8000"
# Commands that run here, and their exit codes: models for H20 are not on this machine.
HERE = {
    "specgate doctor --config deploy/laptop.yaml": 0,
    "specgate fetch --config deploy/h20-kimi-qwen.yaml": 1,
}
# Commands, each as a pattern, with what runs it and a text that stands there.
ELSEWHERE = {
    r"make demo": ("tests/engine/test_demo.py", "demo.run("),
    r"(SPECGATE_PORT=\d+ )?make serve": ("tests/support/session.py", "`specgate serve`"),
    r"make setup( PYTHON=.*)?": ("Makefile", "test: test-fast $(AGENTS)"),  # every target makes .venv first
    r"make lint|make test|make docs": (".ci/run", "make lint docs test"),
    r"make test-fast": ("Makefile", "test: test-fast"),
    r"make check-images": (".ci/run", "check-images"),
    r"specgate up --check cluster\.yaml": ("tests/unit/cli/test_up.py", '"up", "--check", ROOT / "cluster.yaml"'),
    r"pip install (\.|'?\.\[ray\]'?)": (".ci/check-images", "venv/bin/specgate doctor"),
    r"specgate front( http\S+| URL)+( \.\.\.)?": ("tests/component/test_front.py", '["front"'),
    r"specgate front --from \S+": ("tests/component/test_front.py", 'ask("--from"'),
    r"specgate serve --config deploy/sim\.yaml": ("tests/support/local.py", '"serve", "--config"'),
    r"ray up( cluster\.yaml)?": ("tests/up/test_ray_up.py", "up"),
    r"specgate connect \S+": ("tests/unit/cli/test_connect.py", '"connect"'),
    r"specgate doctor -- vllm serve \.\.\.": ("tests/unit/cli/test_doctor_command.py", "LINE = "),
    r"specgate doctor --config FILE": ("tests/unit/cli/test_doctor.py", '"doctor"'),
    r"specgate deploy( --config FILE)?": ("tests/unit/cli/test_up.py", '"deploy"'),
    r"specgate explain .*": ("tests/unit/cli/test_explain.py", '"explain"'),
    r"specgate plan .*": ("tests/component/test_shadow.py", '"plan", "--live"'),
    r"specgate (keys|tenants)": ("tests/unit/cli/test_keys.py", '"tenants"'),
    r"specgate usage": ("tests/unit/cli/test_admin.py", '"usage"'),
    r"specgate probe .*": ("tests/unit/cli/test_probe.py", '"probe"'),
    r"specgate conform URL": ("tests/unit/cli/test_conform.py", '"conform"'),
    r"specgate quarantine .*": ("tests/component/test_quarantine_api.py", '"quarantine"'),
}
NOT_RUN = {
    r"docker (build|push) .*": "there is no Docker engine in CI; `make image` builds with buildah",
    r"ray (get-auth-token --generate|exec .*)": "they want a cluster of several machines",
    r"specgate fetch .* --download": "600 GB",
    r"curl .*http://HEAD:.*": "it wants a cluster of several machines",
    r"make bench.*": "minutes to hours, for the figures of the benchmarks",
    r"make check-vllm": "it installs another vLLM, when one is out",
    r"specgate up FILE": "it starts a cluster",
}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:specgate|make|ray|docker|pip|\.venv/bin/specgate|SPECGATE_\w+=\d+ make) [^`]+)`")


def commands(page: Path) -> Iterator[str]:
    """Yields the commands of a page's blocks, of its tables and of its sentences."""
    text = page.read_text(encoding="utf-8")
    for language, block in _BLOCK.findall(text):
        for line in _lines(block) if not language else ():
            yield from (part.strip() for part in line.split(" && "))
    yield from (" ".join(match.replace("\\|", "|").split()) for match in _INLINE.findall(_BLOCK.sub("", text)))


def _lines(block: str) -> Iterator[str]:
    """Yields the commands of a block, of which one may go over several lines."""
    held = ""
    for line in block.splitlines():
        held += line + "\n"
        try:
            words = shlex.split(held.replace("\\\n", " "), comments=True)
        except ValueError:
            continue  # a quotation goes on
        if words and not line.endswith("\\"):
            yield held if words[0] == "curl" else " ".join(words)
            held = ""


ALL = {
    each.removeprefix(".venv/bin/")
    for page in PAGES
    for each in commands(page)
    if re.match(r"(\.venv/bin/)?(specgate|make|ray|docker|pip|curl|SPECGATE)", each)
}
CURLS = sorted(each for each in ALL if each.startswith("curl") and LAPTOP in each)
SNIPPETS = sorted(
    {
        block
        for page in PAGES
        for language, block in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if language == "python" and LAPTOP in block
    }
)


def test_every_command_is_run_or_it_is_said_why_not() -> None:
    assert len(ALL) > 40
    unknown = [
        each
        for each in ALL - HERE.keys() - set(CURLS)
        if not any(re.fullmatch(pattern, each.strip(), re.DOTALL) for pattern in (*ELSEWHERE, *NOT_RUN))
    ]
    assert unknown == []


def test_what_is_said_to_run_a_command_is_there_and_no_entry_is_left_over() -> None:
    for path, text in ELSEWHERE.values():
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} no longer has {text}"
    patterns = (*ELSEWHERE, *NOT_RUN)
    unused = [each for each in patterns if not any(re.fullmatch(each, one.strip(), re.DOTALL) for one in ALL)]
    assert (unused, HERE.keys() - ALL) == ([], set())


@pytest.mark.parametrize(("command", "code"), HERE.items())
def test_a_cheap_command_does_what_the_page_says(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, command.split()[1:])
    assert result.exit_code == code, result.output


@asynccontextmanager
async def laptop() -> AsyncIterator[str]:
    """The gateway of `deploy/laptop.yaml` with simulated engines in place of vLLM's; yields its URL."""
    path = ROOT / "deploy" / "laptop.yaml"
    args = args_of(yaml_files.read(path), path)
    args["quarantine"] = {"reference_share": 0}
    async with AsyncExitStack() as running:
        for name, model in args["models"].items():
            del model["engine_args"]
            for pool, settings in model["pools"].items():
                drafts = 3 if "speculative" in pool else 0
                engine = build_sim_app(SimSettings(model=name, grammar=model["grammar"], num_speculative_tokens=drafts))
                endpoint = await running.enter_async_context(listening(engine))
                facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "eagle3" if drafts else "none"}
                model["pools"][pool] = {
                    "kind": "remote", "url": endpoint.url, "facts": facts, "proven": settings.get("proven", [])
                }  # fmt: skip
        replica = GatewayReplica(GatewayConfig.parse(args).model_dump(mode="json"), [])
        gateway = await running.enter_async_context(listening(replica.app(), replica.hot))
        yield gateway.url


async def test_the_requests_and_the_python_of_the_pages_do_what_the_pages_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (len(CURLS) > 4, len(SNIPPETS) > 1) == (True, True)
    async with laptop() as url:
        for command in CURLS:
            words = shlex.split(command.replace("\\\n", " ").replace(LAPTOP, url))
            process = await asyncio.create_subprocess_exec(
                *words, "--fail-with-body", "--max-time", "30", stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, (command, output)
            if "enable_speculative" in command:
                assert b"x-specgate-speculative: off" in output
                assert b"caller-opt-out" in output
        for snippet in SNIPPETS:
            scope: dict[str, Any] = {}
            await asyncio.to_thread(exec, compile(snippet.replace(LAPTOP, url), "snippet", "exec"), scope)
    assert "get_weather" in capsys.readouterr().out
