"""Agents that `make agents` installs, run once and to their end."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

_AGENTS = Path(__file__).parents[2] / "build" / "agents"
_INSTALLED = f"{_AGENTS / 'npm' / 'node_modules' / '.bin'}:{_AGENTS / 'kimi' / 'bin'}"
_TIMEOUT_S = 240


def installed(name: str) -> str:
    """Returns the path of an agent's program, as SPECGATE_<NAME> says or where `make agents` puts it.

    The test is skipped if there is none.
    """
    found = os.environ.get(f"SPECGATE_{name.upper()}") or shutil.which(name, path=_INSTALLED) or shutil.which(name)
    if found is None:
        pytest.skip(f"`make agents` installs {name}, or SPECGATE_{name.upper()} says where it is")
    return found


async def run_agent(program: str, *arguments: str, folder: Path, env: Mapping[str, str]) -> str:
    """Runs an agent in a folder and returns all that it printed.

    Args:
        program: From `installed`.
        arguments: Of the command line.
        folder: Where it works.
        env: Its settings; `HOME` lies beside the folder, so that it finds no others.
    """
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    path = f"{_INSTALLED}:{os.environ['PATH']}"  # agents want a newer Node than many systems have
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=folder,
        env={**os.environ, "HOME": str(home), "PWD": str(folder), "PATH": path, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, 9)
    return output.decode(errors="replace")
