"""What `doctor` says of the secrets of pools."""

from pathlib import Path
from typing import Any

import pytest

from serve.config.gateway import GatewayConfig
from serve.tools.doctor.secret_places import secret_findings


def findings(**pool: Any) -> list[str]:
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}
    return [text for *_, text in secret_findings(GatewayConfig.parse({"models": {"m": model}}))]


def test_a_key_that_is_not_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    remote = {"kind": "remote", "url": "http://there"}
    assert findings(**remote) == []
    assert findings(**remote, api_key_file=str(tmp_path / "key")) == []
    (said,) = findings(**remote, api_key_file=str(tmp_path / "none"))
    assert "models.m.pools.p.api_key_file" in said


@pytest.mark.parametrize(
    "pool",
    [
        {"env": {"HF_TOKEN": "canary"}},
        {"env": {"OTEL_EXPORTER_OTLP_HEADERS": "canary"}},
        {"engine_args": {"hf_token": "canary"}},
        {"ray_actor_options": {"runtime_env": {"env_vars": {"AWS_SECRET_ACCESS_KEY": "canary"}}}},
    ],
)
def test_a_secret_in_the_configuration_is_told_by_name(pool: dict[str, Any]) -> None:
    (said,) = findings(**pool)
    assert "Ray's dashboard shows" in said
    assert "canary" not in said


def test_what_only_looks_like_a_secret_is_none() -> None:
    assert findings(env={"TOKENIZERS_PARALLELISM": "false"}, engine_args={"hf-token": True}) == []
