"""Real engines qualify: what they draft is, token by token, what they would have said without."""

import pytest
from support.session import ENGINE_KEY, ROOT, engine_url

from lab.probe.qualify import QualifyTerms
from lab.probe.qualify_run import pair_of, run_qualify
from serve.config.gateway import GatewayConfig

pytestmark = pytest.mark.engine
TERMS = QualifyTerms(alpha=0.5, tolerance=0.5, corruption=0.5, context=1024)


async def test_a_drafting_engine_qualifies_beside_one_of_the_same_weights(
    gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", ENGINE_KEY)
    config = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml")
    fast, slow = [await engine_url("tiny-kimi", pool) for pool in ("speculative", "standard")]
    pair = pair_of(config, "tiny-kimi", "speculative", fast, slow, "ENGINE_KEY")
    found = await run_qualify(config, pair, TERMS, 60, lambda _: None)
    findings = {name: verdict.finding for name, verdict in found.tests.items()}
    assert findings.pop("echo") == "undecided"  # so small a model copies no identifiers, with or without drafts
    assert findings == dict.fromkeys(findings, "passed")
    assert found.key["method"] == "eagle3"
    assert found.key["engine_version"]
