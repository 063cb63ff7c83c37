"""The manifests of a gateway in front of running engines, beside a KubeRay cluster, and the compose file."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.vllm_options import KNOWN
from serve.config.gateway import GatewayConfig
from serve.tools.decider import Decider
from serve.tools.doctor import examine
from tests.unit.deploy.schemas import Problems, kubernetes_problems

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBECTL = shutil.which("kubectl")
NO_PLAIN_OBJECTS = {
    "pod-monitor.yaml", "pod-monitors.yaml", "kustomization.yaml", "rayservice.yaml", "serve-config.yaml",
    "gateway-config.yaml",
}  # fmt: skip
PLAIN = sorted(
    path
    for path in (*(DEPLOY / "kubernetes").rglob("*.yaml"), *(DEPLOY / "kuberay").rglob("*.yaml"))
    if path.name not in NO_PLAIN_OBJECTS
)
CONFIGS = sorted(DEPLOY.rglob("gateway-config.yaml"))


@pytest.fixture(scope="module")
def problems() -> Problems:
    return kubernetes_problems()


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def built(folder: Path) -> list[dict[str, Any]]:
    if KUBECTL is None:
        pytest.skip("kubectl is not here, which builds the manifests")
    output = subprocess.run([KUBECTL, "kustomize", folder], check=True, capture_output=True, text=True)
    return list(yaml.safe_load_all(output.stdout))


def pods() -> list[dict[str, Any]]:
    """The pod of every Deployment and Job."""
    found = [each for path in PLAIN for each in documents(path) if each["kind"] in ("Deployment", "Job")]
    return [each["spec"]["template"]["spec"] for each in found]


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_object_is_valid(path: Path, problems: Problems) -> None:
    for document in documents(path):
        if document["kind"] == "Deployment":
            document["spec"]["selector"] = {}  # kustomize writes it
        assert problems(document) == []


def test_the_schema_catches_a_typing_error(problems: Problems) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"prots": []}}
    assert "prots" in problems(service)[0]


def test_the_front_builds_to_valid_objects_that_select_its_pods(problems: Problems) -> None:
    found = {each["kind"]: each for each in built(DEPLOY / "kubernetes" / "front")}
    kinds = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy"}
    assert set(found) == kinds
    assert [message for each in found.values() for message in problems(each)] == []
    template = found["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}, "nodes can be drained, one by one"
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert template["spec"]["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]


def test_pods_are_restricted_as_pod_security_wants_it() -> None:
    assert len(pods()) > 1
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False  # but for the component `endpoints`
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_front_ends_its_streams_before_it_is_killed() -> None:
    (deployment, *_) = documents(DEPLOY / "kubernetes/front/gateway.yaml")
    config = GatewayConfig.load(DEPLOY / "kubernetes/front/gateway-config.yaml")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > config.graceful_shutdown_timeout_s


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_its_configuration_covers_every_hazard(path: Path) -> None:
    assert examine(Decider.load(path))["healthy"]


def test_a_front_that_looks_endpoints_up_may_list_them_and_nothing_more(tmp_path: Path, problems: Problems) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / "front" / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components: [../monitoring]", "components: [../endpoints]"))
    found = {each["kind"]: each for each in built(file.parent)}
    assert [message for each in found.values() for message in problems(each)] == []
    pod = found["Deployment"]["spec"]["template"]["spec"]
    account = found["ServiceAccount"]["metadata"]["name"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (account, True)
    assert found["Role"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    ]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]


def test_what_not_every_cluster_has_is_a_component_that_can_be_added(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kuberay", tmp_path / "kuberay")
    base = tmp_path / "kuberay" / "base"
    for kustomization in base.parent.glob("*/kustomization.yaml"):
        if "components:" not in kustomization.read_text() or kustomization.parent == base:
            continue
        assert documents(kustomization)[0]["kind"] == "Component"
    file = base / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components:", "components:"))
    kinds = {each["kind"] for each in built(base)}
    assert {"RayService", "PodMonitor", "PersistentVolumeClaim", "Job", "NetworkPolicy"} <= kinds


def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    return loaded


def test_the_gateway_of_the_compose_file_asks_the_engines_that_it_starts() -> None:
    config = GatewayConfig.load(DEPLOY / "compose" / "gateway-config.yaml")
    engines = set(services()) - {"gateway"}
    assert {pool.url for *_, pool in config.each_pool()} == {f"http://{name}:8000" for name in engines}
    assert set(services()["gateway"]["depends_on"]) == engines


def test_its_engines_start_with_options_that_vllm_has_and_as_the_facts_say() -> None:
    for name, _, _, pool in GatewayConfig.load(DEPLOY / "compose" / "gateway-config.yaml").each_pool():
        engine = services()[str(pool.url).partition("://")[2].partition(":")[0]]
        options = dict(each.removeprefix("--").partition("=")[::2] for each in engine["command"])
        assert {each.replace("-", "_") for each in options} <= KNOWN
        assert options["served-model-name"] == name
        assert engine["image"].endswith(f":v{pool.facts['engine_version']}")
        assert options["tool-call-parser"] == pool.facts["tool_parser"]
        method = json.loads(options.get("speculative-config", '{"method": "none"}'))["method"]
        assert method == pool.facts["method"]
