"""The `docker run` that Ray's launcher makes of a cluster file, and what Docker's own parser says to it."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from ray.autoscaler._private.docker import docker_start_cmds

from serve.config import yaml_files

ROOT = Path(__file__).parents[3]
CLUSTERS = [ROOT / "cluster.yaml", *sorted((ROOT / "deploy" / "cluster").glob("*.yaml"))]
DOCKER = shutil.which("docker")


def command(path: Path, role: str) -> list[str]:
    document = yaml_files.read(path)
    docker = document["docker"]
    options = [*docker.get("run_options", []), *docker.get(f"{role}_run_options", [])]
    line = docker_start_cmds(
        document["auth"]["ssh_user"], docker["image"], document["file_mounts"], docker["container_name"], options,
        document["cluster_name"], "/home/specgate", "docker",
    )  # fmt: skip
    return shlex.split(line)


def test_a_worker_gets_gpus_models_memory_and_limits_and_the_head_no_gpus() -> None:
    worker, head = command(CLUSTERS[0], "worker"), command(CLUSTERS[0], "head")
    assert {"--gpus", "--shm-size=160g", "nofile=1048576:1048576", "memlock=-1:-1"} <= set(worker)
    assert "/model_files:/model_files:ro" in worker
    assert "--gpus" not in head
    assert worker[-2:] == ["registry.example.com/specgate:0.16.0-vllm0.32.0", "bash"]


@pytest.mark.skipif(DOCKER is None, reason="Docker's command line is not here")
@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_docker_understands_every_option(path: Path, role: str, tmp_path: Path) -> None:
    """Docker parses the options before it looks for its engine, which is not where we send it: nothing is started."""
    nowhere = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock", "DOCKER_CONFIG": str(tmp_path)}
    reply = subprocess.run(command(path, role), env=nowhere, capture_output=True, text=True, check=False).stderr
    assert "no-engine.sock" in reply, reply
