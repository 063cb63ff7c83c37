"""Advisories count as far as whoever signs them vouches for them."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.odd_files import ODD_KINDS, put_odd
from support.signer import Signer

from policies.freshness import EXPIRED
from serve.config.compiled_policy import INDEX, read_advisories, read_index, sign
from serve.config.gateway import PolicyConfig
from serve.errors import ConfigError


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


def test_what_is_signed_is_read(signer: Signer) -> None:
    index = sign(signer.folder, signer.private, days=2)
    assert signer.read() == [signer.first.stem, signer.second.stem]
    assert index == read_index(signer.folder, signer.public)
    assert index.expires_s - index.issued_s == 2 * 86_400


def test_an_advisory_is_revoked_by_an_index_without_it(signer: Signer) -> None:
    sign(signer.folder, signer.private, days=1)
    (signer.folder / signer.first.name).unlink()
    with pytest.raises(ConfigError, match=rf"{signer.first.name}: missing"):
        signer.read()
    sign(signer.folder, signer.private, days=1)
    assert signer.read() == [signer.second.stem]


def test_what_nobody_vouches_for_is_refused(signer: Signer) -> None:
    sign(signer.folder, signer.private, days=1)
    shutil.copy(signer.third, signer.folder)
    with pytest.raises(ConfigError, match=rf"{signer.third.name}: not signed"):
        signer.read()
    (signer.folder / signer.third.name).unlink()
    changed = signer.folder / signer.first.name
    changed.write_text(changed.read_text() + "\n")
    with pytest.raises(ConfigError, match=rf"{signer.first.name}: changed since it was signed"):
        signer.read()


def test_a_folder_that_is_not_sound_is_not_signed(signer: Signer) -> None:
    (signer.folder / "broken.yaml").write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.yaml can't be read"):
        sign(signer.folder, signer.private, days=1)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"a.b.c", b"[]", b"eyJhbGciOiJub25lIn0.e30.", b"x" * 10_000])
def test_an_index_that_is_none_is_refused(signer: Signer, content: bytes) -> None:
    (signer.folder / INDEX).write_bytes(content)
    with pytest.raises(ConfigError, match="is not signed by"):
        signer.read()


@pytest.mark.parametrize("claims", [{}, {"iat": 1, "exp": 2, "files": {}}, {"iat": 1, "exp": 2, "files": ["a.yaml"]},
                                    {"iat": "x", "exp": 2, "files": {"a.yaml": "0"}}])  # fmt: skip
def test_signed_claims_of_another_shape_are_refused(signer: Signer, claims: Any) -> None:
    signer.write_index(claims)
    with pytest.raises(ConfigError, match=INDEX):
        signer.read()


def test_another_key_and_another_algorithm_are_refused(signer: Signer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    sign(signer.folder, Signer(other).private, days=1)
    with pytest.raises(ConfigError, match="Signature verification failed"):
        signer.read()
    claims = {"iat": 1, "exp": int(time.time()) + 1000, "files": {signer.first.name: "0" * 64}}
    signer.write_index(claims, "HS512")
    with pytest.raises(ConfigError, match="is not signed by"):
        signer.read()


@pytest.mark.parametrize("content", [b"", b"no key", None])
def test_a_key_that_is_none_is_named(signer: Signer, content: bytes | None) -> None:
    sign(signer.folder, signer.private, days=1)
    signer.public.unlink() if content is None else signer.public.write_bytes(content)
    with pytest.raises(ConfigError, match=r"public\.pem"):
        signer.read()
    with pytest.raises(ConfigError, match="openssl genpkey"):
        sign(signer.folder, signer.public, days=1)


@pytest.mark.parametrize("kind", ODD_KINDS)
@pytest.mark.parametrize("what", ["advisory", "key"])
def test_what_is_no_file_keeps_no_reader_waiting(signer: Signer, what: str, kind: str) -> None:
    sign(signer.folder, signer.private, days=1)
    place = signer.folder / "odd.yaml" if what == "advisory" else signer.public
    place.unlink(missing_ok=True)
    put_odd(kind, place)
    with pytest.raises(ConfigError, match=place.name):
        signer.read()


def test_a_missing_index_says_how_to_make_one(signer: Signer) -> None:
    with pytest.raises(ConfigError, match="specgate advisories pack"):
        signer.read()


def test_an_expired_index_is_a_suspicion_of_every_draft(signer: Signer) -> None:
    index = sign(signer.folder, signer.private, days=1)
    signer.write_index({"iat": index.issued_s - 100, "exp": index.issued_s - 1, "files": dict(index.digests)})
    assert signer.read() == [signer.first.stem, signer.second.stem, EXPIRED]


def test_a_gateway_that_starts_with_a_refused_folder_speculates_nowhere(signer: Signer) -> None:
    advisory, *others = read_advisories(signer.config)
    assert not others
    assert advisory.unsafe == ("any",)
    assert "index.jws" in (advisory.problem or "")


def test_a_key_without_a_folder_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="it signs the folder"):
        PolicyConfig(advisories_key="key.pem")
