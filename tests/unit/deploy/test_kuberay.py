"""The KubeRay manifests: valid by KubeRay's own schema, and what they deploy is what `deploy/` holds."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from serve.config import yaml_files
from serve.config.gateway import AdminConfig, GatewayConfig
from serve.launch.cluster_file import FLAGS
from serve.launch.submit import split_applications
from tests.unit.deploy.schemas import ray_service_validator

ROOT = Path(__file__).parents[3]
KUBERAY = ROOT / "deploy" / "kuberay"
SERVED = {
    "base/rayservice.yaml": "h20-kimi-qwen.yaml",
    "one-node/serve-config.yaml": "overlays/k26-one-node.yaml",
    "sim/serve-config.yaml": "overlays/sim-cluster.yaml",
}
KUBECTL = shutil.which("kubectl")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return ray_service_validator()


def base() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((KUBERAY / "base" / "rayservice.yaml").read_text())
    return document


def served(spec: dict[str, Any]) -> GatewayConfig:
    """The gateway's config: the `args` of the first application; what can change in place is not among them."""
    gateway, *_ = yaml.safe_load(spec["serveConfigV2"])["applications"]
    return GatewayConfig.parse(gateway["args"])


def built(overlay: str) -> list[dict[str, Any]]:
    if KUBECTL is None:
        pytest.skip("kubectl is not here, which builds the overlays")
    output = subprocess.run([KUBECTL, "kustomize", KUBERAY / overlay], check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(output.stdout))


def test_the_base_is_a_ray_service(validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(base())] == []


def test_the_schema_catches_a_typing_error(validator: jsonschema.Draft202012Validator) -> None:
    document = base()
    container = document["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = {}
    assert "readynessProbe" in next(validator.iter_errors(document)).message


@pytest.mark.parametrize("overlay", ["base", "one-node", "sim"])
def test_an_overlay_builds_to_a_valid_service_and_its_companions(
    validator: jsonschema.Draft202012Validator, overlay: str
) -> None:
    documents = {each["kind"]: each for each in built(overlay)}
    assert set(documents) == {"RayService", "PodDisruptionBudget", "NetworkPolicy"}
    assert [error.message for error in validator.iter_errors(documents["RayService"])] == []


@pytest.mark.parametrize(("manifest", "config"), SERVED.items(), ids=str)
def test_a_manifest_serves_what_its_config_says(manifest: str, config: str) -> None:
    spec = yaml.safe_load((KUBERAY / manifest).read_text())["spec"]
    document = yaml.safe_load(spec["serveConfigV2"])
    assert document == split_applications(yaml_files.read(ROOT / "deploy" / config)), "run `make kuberay`"


def test_head_and_workers_start_ray_with_the_data_plane_s_flags() -> None:
    cluster = base()["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env.items() >= FLAGS.items()
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_every_pod_gets_the_clusters_token() -> None:
    assert base()["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_a_worker_has_time_to_end_its_streams_before_it_is_killed() -> None:
    spec = base()["spec"]
    applications = yaml.safe_load(spec["serveConfigV2"])["applications"]
    longest = max(each["graceful_shutdown_timeout_s"] for one in applications for each in one["deployments"])
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > longest
    assert spec["rayClusterDeletionDelaySeconds"] >= longest


def test_the_nodes_offer_what_the_pools_ask_for() -> None:
    spec = base()["spec"]
    config = served(spec)
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    offered = json.loads(json.loads(workers["rayStartParams"]["resources"]))
    asked = sum(pool.ray_actor_options["resources"]["h20_96gb"] for *_, pool in config.each_pool())
    assert asked <= offered["h20_96gb"] * workers["replicas"]
    gpus = workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == workers["rayStartParams"]["num-gpus"]


def test_the_budget_and_the_monitors_select_the_pods_that_there_are() -> None:
    cluster = base()["spec"]["rayClusterConfig"]
    labels = cluster["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    budget, heads = yaml.safe_load_all((KUBERAY / "base" / "disruption.yaml").read_text())
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    admin_api, pods = yaml.safe_load_all((KUBERAY / "monitoring" / "pod-monitors.yaml").read_text())
    head = cluster["headGroupSpec"]["template"]
    assert heads["spec"]["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()
    assert admin_api["spec"]["selector"]["matchLabels"].items() <= head["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in head["spec"]["containers"][0]["ports"]}
    assert ports[admin_api["spec"]["podMetricsEndpoints"][0]["port"]] == AdminConfig().port
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert pods["spec"]["selector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        assert "metrics" in {each["name"] for each in group["template"]["spec"]["containers"][0]["ports"]}


def test_a_change_of_the_image_does_not_ask_for_as_many_gpus_again() -> None:
    assert base()["spec"]["upgradeStrategy"] == {"type": "None"}


def test_pods_are_restricted_as_pod_security_wants_it() -> None:
    cluster = base()["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
