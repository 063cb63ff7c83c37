"""The samples of `deploy/edge/` beside the gateway's own defaults; they run in `tests/component/test_edge.py`."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.config.gateway import LimitsConfig

DEPLOY = Path(__file__).parents[3] / "deploy"
LIMITS = LimitsConfig()


@pytest.mark.parametrize("name", ["haproxy.cfg", "Caddyfile"])
def test_the_edge_takes_bodies_as_large_as_the_gateway_does(name: str) -> None:
    text = (DEPLOY / "edge" / name).read_text()
    assert re.findall(r"presetenv SPECGATE_EDGE_MAX_BODY_BYTES (\d+)|SPECGATE_EDGE_MAX_BODY_BYTES:(\d+)", text) in (
        [(str(LIMITS.max_body_bytes), "")],
        [("", str(LIMITS.max_body_bytes))],
    )


@pytest.mark.parametrize(
    ("name", "setting"), [("haproxy.cfg", "timeout server"), ("Caddyfile", "response_header_timeout")]
)
def test_the_edge_waits_longer_than_the_gateway(name: str, setting: str) -> None:
    found = re.search(rf"{setting} (\d+)s", (DEPLOY / "edge" / name).read_text())
    assert found is not None
    assert int(found[1]) > LIMITS.request_timeout_s


def test_the_route_on_kubernetes_leads_to_the_service_that_kuberay_makes_of_ours() -> None:
    documents = yaml.safe_load_all((DEPLOY / "edge" / "kubernetes-gateway.yaml").read_text())
    edge, route = documents
    service: dict[str, Any] = yaml.safe_load((DEPLOY / "kuberay" / "base" / "rayservice.yaml").read_text())
    port = yaml.safe_load(service["spec"]["serveConfigV2"])["http_options"]["port"]
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": f"{service['metadata']['name']}-serve-svc", "port": port}]
    (parent,) = route["spec"]["parentRefs"]
    assert parent["name"] == edge["metadata"]["name"]
    assert parent["sectionName"] in [listener["name"] for listener in edge["spec"]["listeners"]]
