"""The configuration of access: what can't work is refused, and nothing in it is a secret."""

from typing import Any

import pytest
from pydantic import ValidationError

from serve.config.access import AccessConfig

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
