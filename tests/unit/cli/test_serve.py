"""`specgate serve` and `specgate demo`, up to the start of Ray."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_UP_TO_RAY = """
import sys
from {module} import {command}

def prepared_environment():
    sys.exit(f"Ray was imported before: {'ray' in sys.modules}")

sys.modules["{module}"].prepared_environment = prepared_environment
{command}(admin_port=0)
"""


@pytest.mark.parametrize(("module", "command"), [("serve.cli.serve", "serve"), ("lab.cli.demo", "demo")])
def test_ray_is_imported_after_the_environment_that_it_reads_is_set(module: str, command: str) -> None:
    script = _UP_TO_RAY.replace("{module}", module).replace("{command}", command)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == "Ray was imported before: False"


@pytest.mark.parametrize(
    ("facts", "said"), [({}, "specgate front --config"), ({"method": "eagel3"}, "did you mean `eagle3`?")]
)
def test_a_method_that_is_not_known_is_told_at_the_start(
    specgate: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, str],
    said: str,
) -> None:
    for name in ("run_alone", "log_to_stderr"):
        monkeypatch.setattr(f"serve.cli.serve.{name}", lambda *_: None)
    path = tmp_path / "bare.yaml"
    pool = {"kind": "remote", "url": "http://engine:8000", "facts": facts}
    path.write_text(json.dumps({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}}))
    code, output = specgate("serve", "--config", path)
    assert code == 0
    assert said in " ".join(output.split())
    code, output = specgate("serve", "--config", path, "--port", 8123, "--admin-port", 8123)
    assert (code, "can't both have port 8123" in output) == (2, True)


def test_an_engine_that_could_not_start_is_told_before_ray_does(
    specgate: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    pool = {"kind": "vllm", "engine_args": {"model": "/no/such/folder", "max-model-length": 1024}}
    path.write_text(json.dumps({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}}))
    code, output = specgate("serve", "--config", path)
    output = " ".join(output.split())
    assert code == 2
    assert "m/p: vLLM has no engine argument 'max-model-length'; did you mean 'max-model-len'?" in output
    assert "the folder of its model, /no/such/folder, is not on this machine" in output
    assert "specgate fetch --config" in output


def test_an_advisory_that_cannot_be_read_is_told_at_the_start_with_its_file_and_line(
    specgate: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run_alone", "log_to_stderr"):
        monkeypatch.setattr(f"serve.cli.serve.{name}", lambda *_: None)
    path, advisories = tmp_path / "remote.yaml", tmp_path / "advisories"
    advisories.mkdir()
    (advisories / "own.yaml").write_text("id: own\ntitle: [\n")
    pool = {"kind": "remote", "url": "http://engine:8000", "facts": {"engine": "vllm", "method": "none"}}
    models = {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}
    path.write_text(json.dumps({"models": models, "policy": {"advisories": str(advisories)}}))
    code, output = specgate("serve", "--config", path)
    assert code == 0
    assert "nothing speculates, because own.yaml can't be read: line 3: expected" in " ".join(output.split())
