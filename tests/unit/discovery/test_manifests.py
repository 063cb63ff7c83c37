"""The address of each engine that manifests, Compose files and scripts start."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve.discovery.manifests import read_description

NO_NAME = st.sampled_from([None, "blue", "green"])


def urls(text: str, **env: str) -> list[str | None]:
    return [each.url for each in read_description(text, "file", env).engines]


def container(port: int = 8000, *ports: tuple[str, int]) -> dict[str, Any]:
    named = [{"name": name, "containerPort": number} for name, number in ports]
    args = ["--model", "a/b", "--port", str(port)]
    return {"name": "engine", "image": "vllm/vllm-openai:v0.33.0", "args": args, "ports": named}


def about(name: str, namespace: str | None) -> dict[str, Any]:
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def deployment(*containers: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": list(containers)}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": about("engine", namespace),
        "spec": {"template": template},
    }  # fmt: skip


def service(name: str, *ports: tuple[int, int | str], namespace: str | None = None) -> dict[str, Any]:
    each = [{"port": port, "targetPort": target} for port, target in ports]
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": about(name, namespace),
        "spec": {"selector": {"app": "x"}, "ports": each},
    }  # fmt: skip


def manifests(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def test_pods_are_behind_the_service_of_their_own_namespace() -> None:
    text = manifests(
        *(each for name in ("blue", "green") for each in (
            deployment(container(), namespace=name), service("vllm", (80, 8000), namespace=name),
        ))
    )  # fmt: skip
    assert urls(text) == ["http://vllm.blue:80", "http://vllm.green:80"]


@given(NO_NAME, NO_NAME)
def test_a_namespace_that_is_not_said_may_be_any(of_pods: str | None, of_service: str | None) -> None:
    text = manifests(deployment(container(), namespace=of_pods), service("s", (80, 8000), namespace=of_service))
    apart = of_pods and of_service and of_pods != of_service
    assert urls(text) == [None if apart else f"http://s.{of_service}:80" if of_service else "http://s:80"]


def test_a_named_port_is_that_of_the_container_which_names_it() -> None:
    exporter = {"name": "exporter", "image": "exporter", "ports": [{"name": "metrics", "containerPort": 9102}]}
    front = service("s", (9102, "metrics"), (80, "http"))
    assert urls(manifests(deployment(exporter, container(8000, ("http", 8000))), front)) == ["http://s:80"]
    both = deployment(container(8000, ("first", 8000)), container(8001, ("second", 8001)))
    assert urls(manifests(both, service("s", (80, "first"), (81, "second")))) == ["http://s:80", "http://s:81"]
    assert urls(manifests(both, service("s", (80, "another")))) == [None, None]


def test_an_engine_is_behind_the_first_service_that_leads_to_its_port() -> None:
    both = service("metrics", (9090, 9090)), service("s", (80, 8000))
    assert urls(manifests(deployment(container()), *both)) == ["http://s:80"]
    assert urls(manifests(deployment(container()), both[0])) == [None]


COMPOSE = """
services:
  engine:
    image: vllm/vllm-openai:v0.33.0
    command: --model a/b --port 8001
    ports: [{}]
"""
PUBLISHED = [
    ('"8000:8001"', "http://127.0.0.1:8000"),
    ('"8000:8001/tcp"', "http://127.0.0.1:8000"),
    ('"10.0.0.1:8000:8001"', "http://10.0.0.1:8000"),
    ('"0.0.0.0:8000:8001"', "http://127.0.0.1:8000"),
    ('"[::]:8000:8001"', "http://127.0.0.1:8000"),
    ('"[fd00::1]:8000:8001"', "http://[fd00::1]:8000"),
    ('"8003-8004:8000-8001"', "http://127.0.0.1:8004"),
    ('"10.0.0.1:8003-8004:8000-8001"', "http://10.0.0.1:8004"),
    ('"8003-8005:8001"', None),  # any of them that is free
    ('"8000-8001"', None),
    ('"${PORT:?is needed}:8001"', "http://127.0.0.1:8005"),
    ('"${PORT?is needed}:8001"', "http://127.0.0.1:8005"),
    ('"${PORT-8006}:8001"', "http://127.0.0.1:8005"),
    ('"${ANOTHER-8006}:8001"', "http://127.0.0.1:8006"),
    ('"${PORT:+8007}:8001"', "http://127.0.0.1:8007"),
    ('"${ANOTHER:?is needed}:8001"', None),
    ('"${ANOTHER}:8000:8001"', None),  # on an address that nobody knows
]


@pytest.mark.parametrize(("port", "url"), PUBLISHED)
def test_a_published_port_is_found_at_the_address_where_it_is(port: str, url: str | None) -> None:
    assert urls(COMPOSE.format(port), PORT="8005") == [url]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("published: 8000, target: 8001", "http://127.0.0.1:8000"),
        ("host_ip: 10.0.0.1, published: 8000, target: 8001", "http://10.0.0.1:8000"),
        ("host_ip: 10.0.0.1, published: '8003-8005', target: 8001", None),
        ("target: 8001", None),
    ],
)
def test_so_is_one_in_the_long_form(given: str, url: str | None) -> None:
    assert urls(COMPOSE.format("{" + given + "}")) == [url]


def test_so_is_one_of_a_script() -> None:
    run = "docker run -p {}:8000:8000 vllm/vllm-openai:v0.33.0 --model a/b\n"
    assert urls(run.format("10.0.0.1") + run.format("10.0.0.2")) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
