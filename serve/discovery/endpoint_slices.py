"""Asks the API server of Kubernetes for the endpoints of Services, as a pod may that has the right to list them."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from serve.config.pool import EndpointsConfig
from serve.http1.client import HttpResponse, fetch
from serve.http1.listener import url_of

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 5.0
_MOST_BYTES = 16 * 2**20
_PAGE = 500
_OF_SERVICE = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The API server, and the account with which it is asked.

    Attributes:
        account: Folder with `token`, `ca.crt` and `namespace`; read each time, as tokens are replaced.
    """

    url: str
    account: Path = _SERVICE_ACCOUNT

    @staticmethod
    def here(env: Mapping[str, str] = os.environ) -> "ApiServer":
        """Returns that of the cluster in which this process runs.

        Raises:
            OSError: It runs in none.
        """
        host = env.get("KUBERNETES_SERVICE_HOST")
        if not host:
            raise OSError("`endpoints` are looked up in the cluster where the gateway runs, and this is no pod of one")
        return ApiServer(url_of(host, int(env.get("KUBERNETES_SERVICE_PORT", "443"))).replace("http:", "https:", 1))

    def read(self, name: str) -> str:
        """Returns a file of the account.

        Raises:
            OSError: There is none.
        """
        try:
            return (self.account / name).read_text(encoding="utf-8").strip()
        except OSError as error:
            why = "the pod needs automountServiceAccountToken: true"
            raise OSError(f"{self.account / name} can't be read ({error.strerror}): {why}") from error


async def endpoints_of(wanted: EndpointsConfig, api: ApiServer | None = None) -> list[str]:
    """Returns the base URLs of the endpoints that are ready. Without an API server, that of the cluster in which this
    process runs is asked.

    Raises:
        OSError: It does not answer, refuses, or the endpoints have several ports and none is said.
    """
    server = api or ApiServer.here()
    namespace = wanted.namespace or server.read("namespace")
    labels = {_OF_SERVICE: wanted.service} if wanted.service else wanted.labels
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
    found: dict[str, None] = {}
    more = ""
    while True:
        query = {"labelSelector": selector, "limit": _PAGE, **({"continue": more} if more else {})}
        page = _document(await _ask(server, f"{path}?{urlencode(query)}"), namespace)
        for slice_ in page.get("items") or ():
            found |= dict.fromkeys(_urls(slice_, wanted.port))
        more = (page.get("metadata") or {}).get("continue") or ""
        if not more:
            return list(found)


async def _ask(server: ApiServer, path: str) -> HttpResponse:
    authorities = str(server.account / "ca.crt") if server.url.startswith("https:") else None
    return await fetch(
        server.url, server.read("token"), "GET", path, timeout_s=_TIMEOUT_S, most_bytes=_MOST_BYTES,
        authorities=authorities,
    )  # fmt: skip


def _document(answer: HttpResponse, namespace: str) -> Mapping[str, Any]:
    if answer.status in (401, 403):
        raise OSError(
            f"the API server refuses to list EndpointSlices in {namespace} (HTTP {answer.status}): the pod's service "
            "account needs the Role of deploy/kubernetes/endpoints there"
        )
    try:
        document = json.loads(answer.body)
    except ValueError:
        document = None
    if answer.status != 200 or not isinstance(document, dict):
        raise OSError(f"the API server answers HTTP {answer.status} to a list of EndpointSlices in {namespace}")
    return document


def _urls(slice_: Mapping[str, Any], wanted: int | str | None) -> Iterator[str]:
    """Yields the URLs of a slice's endpoints that take new requests, as one does that says nothing.

    One that ends is listed as ready all the same where a Service publishes addresses that are not.
    """
    if slice_.get("addressType") not in ("IPv4", "IPv6"):
        return
    port = _port(slice_, wanted)
    for endpoint in slice_.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        is_ready = conditions.get("ready") is not False and conditions.get("terminating") is not True
        if port is not None and is_ready:
            yield url_of(endpoint["addresses"][0], port)  # the others are the same, by the API's own word


def _port(slice_: Mapping[str, Any], wanted: int | str | None) -> int | None:
    ports = {each.get("name") or "": each.get("port") for each in slice_.get("ports") or ()}
    if isinstance(wanted, int):
        return wanted  # the number counts, whether a Service names it or not
    if isinstance(wanted, str):
        return ports.get(wanted)
    if len(ports) > 1:
        name = (slice_.get("metadata") or {}).get("name")
        raise OSError(f"the endpoints of {name} have the ports {', '.join(sorted(ports))}: say which with `port`")
    return next(iter(ports.values()), None)
