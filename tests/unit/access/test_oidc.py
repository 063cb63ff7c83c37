"""Tokens of an identity provider: what is not exactly the provider's, for us and in time, is refused."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from serve.access.grants import check_grant
from serve.access.key_record import KeyRecord
from serve.access.oidc import TokenVerifier, fetch_provider_keys, read_provider_keys
from serve.access.principal import Principal, Tenant
from serve.config.access import OidcConfig
from serve.errors import ConfigError, InsufficientScopeError, InvalidApiKeyError, SharedStateError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"iss": "https://id.example", "aud": "specgate", "sub": "anna", "team": "red"}


def config(**changes: Any) -> OidcConfig:
    fields = {"issuer": CLAIMS["iss"], "audience": "specgate", "jwks_file": "x", "tenant_claim": "team", **changes}
    return OidcConfig.model_validate(fields)


def jwks(folder: Path) -> Path:
    rsa_key = {**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one"}
    ec_key = {**ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True), "kid": "two"}
    path = folder / "jwks.json"
    path.write_text(json.dumps({"keys": [rsa_key, ec_key]}), encoding="utf-8")
    return path


@pytest.fixture
def keys(tmp_path: Path) -> Mapping[str, jwt.PyJWK]:
    return read_provider_keys(jwks(tmp_path))


def verifier(keys: Mapping[str, jwt.PyJWK], **changes: Any) -> TokenVerifier:
    made = TokenVerifier(config(**changes), Tenant)
    made.adopt(keys)
    return made


def signed(key: Any = KEY, algorithm: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    content = {**CLAIMS, "exp": int(time.time()) + 600, **claims}
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, {"kid": kid} if kid else None)


def test_a_person_is_a_principal_of_the_team_that_the_token_names(keys: Mapping[str, jwt.PyJWK]) -> None:
    principal = verifier(keys, scopes=("infer", "observe"))(signed())
    assert isinstance(principal, Principal)
    assert (principal.key_id, principal.tenant) == ("oidc:anna", Tenant("red"))
    assert principal.scopes == {"infer", "observe"}


def test_another_signature_on_the_list_is_as_good(keys: Mapping[str, jwt.PyJWK]) -> None:
    assert verifier(keys)(signed(CURVE, "ES256", "two")).key_id == "oidc:anna"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": None},
        {"exp": 1},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"sub": None},
        {"team": None},
        {"team": ["red"]},
        {"team": "../red"},
        {"team": ""},
        {"nbf": int(time.time()) + 600},
        {"exp": 10**400},
        {"sub": "\ud800"},
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(keys: Mapping[str, jwt.PyJWK], claims: dict[str, Any]) -> None:
    with pytest.raises(InvalidApiKeyError):
        verifier(keys)(signed(**claims))


def test_a_token_that_the_provider_did_not_sign_is_refused_without_being_repeated(
    keys: Mapping[str, jwt.PyJWK],
) -> None:
    unsigned = jwt.encode({**CLAIMS, "exp": int(time.time()) + 600}, None, "none", {"kid": "one"})
    shared = jwt.encode({**CLAIMS, "exp": int(time.time()) + 600}, "x" * 64, "HS256", {"kid": "one"})
    head, body, signature = signed().split(".")
    tokens = [
        unsigned,
        shared,
        signed(OTHER),
        signed(KEY, "PS256"),
        f"{head}.{body[:-2]}xx.{signature}",
        "a.b.c",
        "none",
        "",
        "é" * 9,
        "x" * 20_000,
    ]
    for token in tokens:
        with pytest.raises(InvalidApiKeyError) as caught:
            verifier(keys)(token)
        assert caught.value.__cause__ is None
        assert len(token) < 9 or token not in str(caught.value)


def test_a_token_of_an_unknown_key_makes_the_keys_be_asked_for_again(keys: Mapping[str, jwt.PyJWK]) -> None:
    made = verifier(keys)
    with pytest.raises(InvalidApiKeyError):
        made(signed(kid="three"))
    assert made.lacks_key
    made.adopt(keys)
    assert not made.lacks_key


def test_a_verified_token_is_known_until_it_ends_and_only_as_a_whole(keys: Mapping[str, jwt.PyJWK]) -> None:
    now = [time.time()]
    made = TokenVerifier(config(), Tenant, lambda: now[0])
    made.adopt(keys)
    token = signed()
    assert made(token) is made(token)
    with pytest.raises(InvalidApiKeyError):
        made(token[:-1] + ("A" if token[-1] != "A" else "B"))
    made.adopt({})
    with pytest.raises(InvalidApiKeyError):
        made(token)


def test_new_terms_of_a_tenant_hold_for_people_too(keys: Mapping[str, jwt.PyJWK]) -> None:
    terms = {"red": Tenant("red")}
    made = TokenVerifier(config(), terms.__getitem__)
    made.adopt(keys)
    token = signed()
    made(token)
    terms["red"] = Tenant("red", weight=5.0)
    assert made(token).tenant.weight == 5.0


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        ("infer observe operate", {"infer", "observe"}),
        (["observe", 3], {"observe"}),
        (None, set()),
        ({"infer": 1}, set()),
    ],
)
def test_a_claim_grants_no_more_than_the_configuration_allows(
    keys: Mapping[str, jwt.PyJWK], claim: Any, scopes: set[str]
) -> None:
    made = verifier(keys, scopes_claim="rights", scopes=("infer", "observe"))
    assert made(signed(rights=claim)).scopes == scopes


def test_a_subject_that_is_not_plain_is_known_by_its_hash(keys: Mapping[str, jwt.PyJWK]) -> None:
    key_id = verifier(keys)(signed(sub="anna\n<script>")).key_id
    assert key_id.startswith("oidc:")
    assert key_id[5:].isalnum()


def test_before_the_providers_keys_are_known_nobody_can_say_that_a_token_is_wrong() -> None:
    with pytest.raises(SharedStateError):
        TokenVerifier(config(), Tenant)(signed())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "nonsense"}]}'])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_provider_keys(path)
    with pytest.raises(ConfigError):
        read_provider_keys(tmp_path / "nowhere.json")


def test_a_provider_that_does_not_answer_is_named() -> None:
    with pytest.raises(ConfigError, match="127"):
        fetch_provider_keys(config(jwks_file=None, jwks_url="https://127.0.0.1:9/jwks"))


LATER = int(time.time()) + 10**6


@pytest.mark.parametrize("exp", [LATER, float(LATER), LATER + 0.5, str(LATER), 10**15, 1e300], ids=type)
def test_whoever_has_a_token_hands_out_keys_for_no_longer_however_its_end_is_written(
    keys: Mapping[str, jwt.PyJWK], exp: Any
) -> None:
    header = {"alg": "RS256", "kid": "one"}
    token = jwt.PyJWS().encode(json.dumps({**CLAIMS, "exp": exp}).encode(), KEY, "RS256", header)
    principal = verifier(keys, scopes=("infer", "keys:own"))(token)
    for expires_s in (None, 1e301):
        with pytest.raises(InsufficientScopeError, match="a life beyond its own"):
            check_grant(principal, KeyRecord("abcdefghij", "red", "ci", (), expires_s=expires_s))
