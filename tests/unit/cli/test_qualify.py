"""`specgate qualify` against simulated engines: what it signs is what a gateway with the same configuration reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.guard_stack import NO_ADVISORIES
from support.signer import Signer
from support.sims import engine

from policies.qualification import FORBIDDEN

QUICK = ("--tolerance", 0.5, "--corruption", 0.3, "--json")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


def written(folder: Path, signer: Signer, fast: str, slow: str) -> Path:
    stated = {"engine": "vllm", "engine_version": "0.32.0", "method": "ngram"}
    pools = {
        "fast": {"kind": "remote", "url": fast, "facts": stated},
        "slow": {"kind": "remote", "url": slow, "facts": {**stated, "method": "none"}},
    }
    verdicts = folder / "verdicts"
    verdicts.mkdir(exist_ok=True)
    policy = {"advisories": NO_ADVISORIES, "qualifications": str(verdicts), "qualifications_key": str(signer.public)}
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({"models": {"sim": {"family": "sim", "pools": pools}}, "policy": policy}))
    return path


def test_what_a_sound_engine_passed_is_signed_and_doctor_and_explain_tell_it(
    specgate: Run, tmp_path: Path, signer: Signer
) -> None:
    with engine(num_speculative_tokens=3) as fast, engine() as slow:
        path = written(tmp_path, signer, fast, slow)
        pool = ("--config", path, "--model", "sim", "--pool", "fast")
        code, out = specgate("qualify", *pool, "--key", signer.private, *QUICK)
        report = json.loads(out)
        assert code == 0
        findings = {name: test["finding"] for name, test in report["tests"].items()}
        assert findings == {**dict.fromkeys(FORBIDDEN, "passed"), "logprobs": "undecided"}
        assert Path(report["written"]).parent == tmp_path / "verdicts"
    _, out = specgate("doctor", "--config", path)
    assert "its engine is qualified on" in " ".join(out.split())
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": "sim", "messages": [{"role": "user", "content": "hi"}]}))
    _, out = specgate("explain", "--config", path, "--request", request)
    assert "fast: qualified on" in out


def test_an_engine_that_breaks_calls_fails_and_its_verdict_is_signed_as_well(
    specgate: Run, tmp_path: Path, signer: Signer
) -> None:
    with engine(num_speculative_tokens=3, faults={"truncated_string": 0.6}) as fast, engine() as slow:
        path = written(tmp_path, signer, fast, slow)
        pool = ("--config", path, "--model", "sim", "--pool", "fast")
        code, out = specgate("qualify", *pool, "--key", signer.private, *QUICK)
    assert code == 1
    assert json.loads(out)["tests"]["tools"]["finding"] == "failed"
    _, out = specgate("doctor", "--config", path)
    assert "failed: tools" in " ".join(out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pool", "none"), "there is no pool"),
        (("--pool", "slow"), "does not speculate"),
        (("--pool", "fast", "--key", "k.pem", "--out", "nowhere"), "no folder for the verdicts"),
        (("--pool", "fast"), "no engine answers"),
        (("--pool", "fast", "--api-key-env", "UNSET"), "UNSET is not set"),
    ],
)
def test_what_can_not_be_qualified_is_said(
    specgate: Run, tmp_path: Path, signer: Signer, options: tuple[str, ...], message: str
) -> None:
    path = written(tmp_path, signer, "http://127.0.0.1:9", "http://127.0.0.1:9")
    code, out = specgate("qualify", "--config", path, "--model", "sim", *options)
    assert code == 2
    assert message in " ".join(out.split())
