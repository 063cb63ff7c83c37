"""The Helm chart, rendered by Helm's own library: valid objects, which differ from kustomize's in values only."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from serve.config.gateway import GatewayConfig
from tests.unit.deploy.schemas import kubernetes_problems, ray_service_validator

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "specgate"
HELM = os.environ.get("HELM_PYTHON")
pytestmark = pytest.mark.skipif(HELM is None, reason="no Helm here, which renders the chart: .ci/check-chart brings it")
CONFIG = (ROOT / "deploy" / "kubernetes" / "front" / "gateway-config.yaml").read_text()
FRONT = {"configFile": CONFIG}
ENGINES = {"mode": "engines"}
NOT_CORE = ("RayService", "PodMonitor")


def rendered(values: dict[str, Any], release: str = "mine") -> dict[str, dict[str, Any]]:
    """Each object by kind and name."""
    result = run(json.dumps(values), release)
    assert result.returncode == 0, result.stderr
    documents = [each for each in yaml.safe_load_all(result.stdout) if each]
    found = {f"{each['kind']} {each['metadata']['name']}": each for each in documents}
    assert len(found) == len(documents)
    return found


@cache
def run(values: str, release: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tests" / "support" / "render_chart.py"
    command = [str(HELM), str(script), str(CHART), values, release]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def one(found: dict[str, dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = [each for each in found.values() if each["kind"] == kind]
    return document


ALL_OF_FRONT = {
    **FRONT,
    "podMonitor": {"enabled": True, "key": {"name": "a", "key": "b"}},
    "imagePullSecrets": [{"name": "registry"}],
    "front": {
        "autoscaling": {"enabled": False}, "replicas": 3, "endpoints": True, "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "x", "operator": "Exists"}], "resources": {"limits": {"memory": "8Gi"}},
        "env": [{"name": "ENGINE_KEY", "valueFrom": {"secretKeyRef": {"name": "engines", "key": "token"}}}],
        "podAnnotations": {"c": "d"}, "service": {"type": "LoadBalancer", "port": 80, "annotations": {"e": "f"}},
    },
}  # fmt: skip
ALL_OF_ENGINES = {
    **ENGINES, "podMonitor": {"enabled": True}, "serveConfig": "applications: []\n",
    "engines": {"nodes": 1, "models": True, "modelsClaim": "weights", "headState": {"redisAddress": "redis:6379"},
                "nodeSelector": {"gpu": "h200"}, "worker": {"resources": {"limits": {"nvidia.com/gpu": "4"}}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "values", [FRONT, ALL_OF_FRONT, ENGINES, ALL_OF_ENGINES], ids=["front", "all", "engines", "all"]
)
def test_every_object_is_valid(values: dict[str, Any]) -> None:
    problems, ray = kubernetes_problems(), ray_service_validator()
    for document in rendered(values).values():
        if document["kind"] == "RayService":
            assert [error.message for error in ray.iter_errors(document)] == []
        elif document["kind"] not in NOT_CORE:
            assert problems(document) == []


def test_the_front_selects_its_own_pods_and_serves_the_configuration() -> None:
    found = rendered(FRONT)
    template = one(found, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert one(found, "Service")["spec"]["selector"] == labels
    assert one(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert one(found, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert one(found, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "mine"
    config = one(found, "ConfigMap")
    assert template["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    GatewayConfig.parse(yaml.safe_load(config["data"]["gateway-config.yaml"]))
    assert template["spec"]["automountServiceAccountToken"] is False


def test_a_changed_configuration_replaces_the_pods() -> None:
    def checksum(config: str) -> str:
        template = one(rendered({"configFile": config}), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum(CONFIG) != checksum(CONFIG + "replicas: 1\n")


def test_every_value_of_the_front_arrives() -> None:
    found = rendered(ALL_OF_FRONT)
    spec = one(found, "Deployment")["spec"]
    pod = spec["template"]["spec"]
    assert "HorizontalPodAutoscaler mine" not in found
    assert (spec["replicas"], pod["nodeSelector"], pod["imagePullSecrets"]) == (3, {"a": "b"}, [{"name": "registry"}])
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "8Gi"}}
    assert [each["name"] for each in pod["containers"][0]["env"]] == ["HOME", "ENGINE_KEY"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("mine", True)
    assert one(found, "RoleBinding")["subjects"] == [{"kind": "ServiceAccount", "name": "mine"}]
    assert one(found, "Service")["spec"]["type"] == "LoadBalancer"
    assert {"ports": [{"port": "admin"}]} in one(found, "NetworkPolicy")["spec"]["ingress"]
    endpoint = one(found, "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert endpoint["authorization"]["credentials"] == {"name": "a", "key": "b"}


def test_engines_are_the_cluster_that_kustomize_builds_with_values_over_it() -> None:
    spec = one(rendered(ENGINES), "RayService")["spec"]
    base = yaml.safe_load((ROOT / "deploy" / "kuberay" / "base" / "rayservice.yaml").read_text())["spec"]
    assert spec["serveConfigV2"] == base["serveConfigV2"]
    assert spec["upgradeStrategy"] == {"type": "None"}
    found = rendered(ALL_OF_ENGINES)
    cluster = one(found, "RayService")["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 1)
    pod = group["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "1024Gi", "nvidia.com/gpu": "4"}
    assert cluster["gcsFaultToleranceOptions"] == {"redisAddress": "redis:6379"}
    claims = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claims == ["weights"] == [one(found, "PersistentVolumeClaim")["metadata"]["name"]]


def test_two_releases_share_no_name_and_select_none_of_each_other() -> None:
    for values in (FRONT, ENGINES):
        first, second = rendered(values, "one"), rendered(values, "two")
        assert not first.keys() & second.keys()
        assert one(first, "NetworkPolicy")["spec"]["podSelector"] != one(second, "NetworkPolicy")["spec"]["podSelector"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "say which engines"),
        ({"mode": "both"}, "mode is front"),
        ({**FRONT, "front": {"nodeselector": {"a": "b"}}}, "'nodeselector' not allowed"),
        ({**FRONT, "image": {"tag": 1.10}}, "/image/tag': got number, want string"),
    ],
    ids=["config", "mode", "spelling", "tag"],
)
def test_what_is_missing_or_wrong_is_said(values: dict[str, Any], why: str) -> None:
    assert why in run(json.dumps(values), "mine").stderr


def test_every_value_of_the_file_may_be_set_and_no_other() -> None:
    def names(schema: dict[str, Any], values: dict[str, Any]) -> None:
        assert schema["properties"].keys() - {"global"} == values.keys()
        for name, each in schema["properties"].items():
            if "properties" in each:
                assert each["additionalProperties"] is False
                names(each, values[name])

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names(schema, values)
    jsonschema.validate(values, schema)


def test_its_version_is_the_project_s() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    gateway = (ROOT / "deploy" / "kubernetes" / "front" / "kustomization.yaml").read_text()
    assert f"newTag: {chart['appVersion']}-gateway" in gateway
    assert isinstance(ray_service_validator(), jsonschema.Draft202012Validator)
