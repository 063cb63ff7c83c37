"""The configuration of access: what can't work is refused, and nothing in it is a secret."""

from typing import Any

import pytest
from pydantic import ValidationError

from serve.config.access import AccessConfig, is_loopback, listening_host, open_gateway, unspoken_tls

OIDC = {"issuer": "https://id.example", "audience": "specgate", "jwks_file": "jwks.json"}


def test_access_is_off_unless_it_is_asked_for() -> None:
    assert AccessConfig().mode == "off"


@pytest.mark.parametrize("source", [{"file": "keys.yaml"}, {"state_dir": "state"}, {"oidc": OIDC}])
def test_required_access_needs_one_source_of_keys(source: dict[str, Any]) -> None:
    AccessConfig.model_validate({"mode": "required", **source})
    with pytest.raises(ValidationError, match="no source of keys"):
        AccessConfig.model_validate({"mode": "required"})


@pytest.mark.parametrize(
    "change",
    [
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"algorithms": []},
        {"jwks_url": "https://id.example/jwks"},
        {"jwks_file": None, "issuer": "http://id.example"},
        {"jwks_file": None, "jwks_url": "http://id.example/jwks"},
        {"scopes": ["root"]},
    ],
)
def test_a_provider_that_could_not_be_trusted_is_refused(change: dict[str, Any]) -> None:
    AccessConfig.model_validate({"oidc": OIDC})
    with pytest.raises(ValidationError):
        AccessConfig.model_validate({"oidc": {**OIDC, **change}})


@pytest.mark.parametrize(
    ("document", "host"),
    [
        ({"models": {}}, None),
        ({"applications": []}, "0.0.0.0"),
        ({"applications": [], "http_options": None}, "0.0.0.0"),
        ({"applications": [], "http_options": {"port": 80}}, "0.0.0.0"),
        ({"applications": [], "http_options": {"host": "10.0.0.1"}}, "10.0.0.1"),
    ],
)
def test_a_serve_config_listens_where_ray_would(document: dict[str, Any], host: str | None) -> None:
    assert listening_host(document) == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_is_whatever_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)
    assert open_gateway(AccessConfig(), host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example", "localhost.example"])
def test_an_open_gateway_that_others_reach_is_a_hazard_unless_it_is_meant(host: str) -> None:
    assert host in (open_gateway(AccessConfig(), host) or "")
    assert open_gateway(AccessConfig(acknowledge_open=True), host) is None
    assert open_gateway(AccessConfig(mode="required", file="keys.yaml"), host) is None


def test_nobody_can_say_what_an_unknown_address_means() -> None:
    assert open_gateway(AccessConfig(), None) is None


def test_tls_that_rays_haproxy_does_not_speak_is_told_with_the_page_that_helps() -> None:
    reply = unspoken_tls({"http_options": {"port": 443, "ssl_certfile": "c.pem", "ssl_keyfile": "k.pem"}})
    assert reply is not None
    assert "http_options.ssl_certfile and http_options.ssl_keyfile" in reply
    assert "docs/how-to/put-tls-in-front.md" in reply


@pytest.mark.parametrize("options", [None, {}, {"port": 443}, {"ssl_certfile": None}], ids=str)
def test_a_config_that_asks_for_no_tls_has_nothing_wrong(options: Any) -> None:
    assert unspoken_tls({"http_options": options}) is None
