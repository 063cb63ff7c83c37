"""Keys and tenants at the admin API: made, listed, rotated and ended by whoever may, and nobody else."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.admin_api import admin_before
from support.disks import full_disk

from serve.access.key_file import KeyTerms
from serve.access.key_ring import KeyRing
from serve.access.key_store import FILE_NAME, KeyStore
from serve.access.key_text import is_token
from serve.access.principal import Principal
from serve.admin.audit import verify


class AdminApi:
    """An admin API with a store of keys, in which every change counts at once."""

    def __init__(self, url: str, store: KeyStore) -> None:
        self.url = url
        self.admin = store.create(
            KeyTerms(tenant="ops", scopes=("infer", "explain", "observe", "operate", "keys:own", "keys"))
        ).token
        self.own = store.create(KeyTerms(tenant="red", scopes=("infer", "keys:own"))).token
        self.user = store.create(KeyTerms(tenant="red")).token

    async def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session,
            session.request(method, f"{self.url}/admin/v1{path}", json=body) as response,
        ):
            return response.status, await response.json()


def written_in(folder: Path) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jsonl")))


@asynccontextmanager
async def running(audit: Path | None = None, keys: KeyStore | None = None) -> AsyncIterator[AdminApi]:
    store = KeyStore(None) if keys is None else keys
    ring = KeyRing(stale_max_s=60)

    def authenticate(headers: Any) -> Principal:
        ring.adopt(store.changes_since(ring.version))
        return ring.authenticate(headers)

    async with admin_before(authenticate=authenticate, audit=audit, keys=store) as ports:
        yield AdminApi(ports.admin_api, store)
    store.close()


async def test_a_key_is_made_used_rotated_and_revoked() -> None:
    async with running() as admin_api:
        status, made = await admin_api.ask(
            admin_api.admin, "POST", "/keys", {"tenant": "blue", "name": "ci", "scopes": ["observe"]}
        )
        assert status == 200
        assert is_token(made["token"])
        assert (made["tenant"], made["name"], made["scopes"]) == ("blue", "ci", ["observe"])
        assert (await admin_api.ask(made["token"], "GET", "/me"))[1]["key"] == made["id"]
        status, rotated = await admin_api.ask(admin_api.admin, "POST", f"/keys/{made['id']}/rotate", {"grace_s": 600})
        assert (status, rotated["id"]) == (200, made["id"])
        assert [(await admin_api.ask(each["token"], "GET", "/me"))[0] for each in (made, rotated)] == [200, 200]
        _, listed = await admin_api.ask(admin_api.admin, "GET", "/keys?tenant=blue")
        assert [key["id"] for key in listed["data"]] == [made["id"]]
        assert listed["data"][0]["old_secret_until"] is not None
        assert (await admin_api.ask(admin_api.admin, "DELETE", f"/keys/{made['id']}"))[0] == 200
        assert [(await admin_api.ask(each["token"], "GET", "/me"))[0] for each in (made, rotated)] == [401, 401]
        assert (await admin_api.ask(admin_api.admin, "DELETE", f"/keys/{made['id']}"))[0] == 400


async def test_patterns_that_no_model_matches_are_told_to_whoever_makes_the_key() -> None:
    async with running() as admin_api:
        body = {"tenant": "blue", "models": ["nope-*", "m*", "*"]}
        status, made = await admin_api.ask(admin_api.admin, "POST", "/keys", body)
        _, plain = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue"})
    assert (status, made["unmatched_models"]) == (200, ["nope-*"])
    assert "unmatched_models" not in plain


async def test_limits_of_a_model_that_does_not_exist_are_told_to_whoever_sets_them() -> None:
    async with running() as admin_api:
        terms = {"model_limits": {"kimi": {"concurrency": 3}, "m": {"concurrency": 3}}}
        status, tenant = await admin_api.ask(admin_api.admin, "PUT", "/tenants/green", terms)
        _, listed = await admin_api.ask(admin_api.admin, "GET", "/tenants")
    assert (status, tenant["unmatched_models"]) == (200, ["kimi"])
    assert set(listed["data"][0]["model_limits"]) == {"kimi", "m"}, "a model may come later"


async def test_what_is_asked_for_at_the_wrong_port_is_sent_to_the_other() -> None:
    async with (
        running() as admin_api,
        aiohttp.ClientSession() as session,
        session.post(f"{admin_api.url}/v1/chat/completions", json={}) as response,
    ):
        status, reply = response.status, await response.json()
    assert (status, "at the gateway's own port" in reply["error"]["message"]) == (404, True)


async def test_a_tenants_admin_stays_within_its_tenant_and_its_rights() -> None:
    async with running() as admin_api:
        status, _ = await admin_api.ask(admin_api.own, "POST", "/keys", {"tenant": "red", "scopes": ["infer"]})
        assert status == 200
        assert {key["tenant"] for key in (await admin_api.ask(admin_api.own, "GET", "/keys"))[1]["data"]} == {"red"}
        for method, path, body in [
            ("POST", "/keys", {"tenant": "blue"}),
            ("POST", "/keys", {"tenant": "red", "scopes": ["keys"]}),
            ("POST", "/keys", {"tenant": "red", "scopes": ["operate"]}),
            ("GET", "/keys?tenant=ops", None),
            ("GET", "/tenants", None),
            ("PUT", "/tenants/red", {"weight": 100}),
            ("DELETE", "/tenants/red", None),
        ]:
            status, answer = await admin_api.ask(admin_api.own, method, path, body)
            assert (status, answer["error"]["code"]) == (403, "insufficient_scope"), (method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/keys"),
        ("POST", "/keys"),
        ("POST", "/keys/abcdefghij/rotate"),
        ("DELETE", "/keys/abcdefghij"),
        ("GET", "/tenants"),
        ("PUT", "/tenants/red"),
        ("DELETE", "/tenants/red"),
    ],
)
async def test_a_users_key_manages_nothing(method: str, path: str) -> None:
    async with running() as admin_api:
        body = {"tenant": "red"} if path == "/keys" and method == "POST" else {}
        status, _ = await admin_api.ask(admin_api.user, method, path, body)
        assert status in (400, 403)
        if not path.startswith("/keys/"):
            assert status == 403
        assert (await admin_api.ask("none", method, path, body))[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tenant": "red", "id": "abcdefghij"},
        {"tenant": "red", "hashes": []},
        {"tenant": "red", "created_s": 0},
        {"tenant": "red", "scopes": ["root"]},
        {"tenant": "red", "models": []},
        {"tenant": "../red"},
        {"tenant": "red", "name": "line\nbreak"},
        {"tenant": "red", "limits": {"tokens": 1}},
        {"tenant": "red", "expires": "9999-12-31T23:59:59-23:59"},
        {"tenant": "red", "expires": "0001-01-01T00:00:00+23:59"},
        {"tenant": "red", "expires": "0001-01-01T00:00:00"},
        {"tenant": "red", "expires": 1e300},
        [],
    ],
)
async def test_only_named_fields_can_be_set(body: Any) -> None:
    async with running() as admin_api:
        status, answer = await admin_api.ask(admin_api.admin, "POST", "/keys", body)
        assert (status, answer["error"]["code"]) == (400, "invalid_request")


async def test_a_key_that_ends_hands_out_and_ends_nothing_that_lasts_longer() -> None:
    async with running() as admin_api:
        terms = {"tenant": "red", "scopes": ["infer", "keys:own"], "expires": "2100-01-01T00:00:00+01:00"}
        _, ending = await admin_api.ask(admin_api.admin, "POST", "/keys", terms)
        _, lasting = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "red"})
        token = ending["token"]
        for method, where, body in [
            ("POST", "/keys", {"tenant": "red"}),
            ("POST", "/keys", {"tenant": "red", "expires": "2100-01-01T00:00:00Z"}),
            ("POST", f"/keys/{lasting['id']}/rotate", {}),
            ("DELETE", f"/keys/{lasting['id']}", None),
        ]:
            status, answer = await admin_api.ask(token, method, where, body)
            assert (status, answer["error"]["code"]) == (403, "insufficient_scope"), (method, where)
            assert "2099-12-31T23:00:00+00:00" in answer["error"]["message"]
        status, child = await admin_api.ask(
            token, "POST", "/keys", {"tenant": "red", "expires": "2099-12-31T23:00:00Z"}
        )
        assert (status, child["expires"]) == (200, "2099-12-31T23:00:00+00:00")
        assert (await admin_api.ask(token, "DELETE", f"/keys/{child['id']}"))[0] == 200


async def test_nobody_ends_a_key_that_holds_more() -> None:
    async with running() as admin_api:
        for more in ({"scopes": ["infer", "operate"]}, {"scopes": ["keys"]}):
            _, held = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "red", **more})
            status, _ = await admin_api.ask(admin_api.own, "DELETE", f"/keys/{held['id']}")
            assert status == 403
            assert (await admin_api.ask(held["token"], "GET", "/me"))[0] == 200
        _, own = await admin_api.ask(admin_api.own, "POST", "/keys", {"tenant": "red"})
        assert (await admin_api.ask(admin_api.own, "DELETE", f"/keys/{own['id']}"))[0] == 200


async def test_a_tenants_terms_are_set_listed_and_removed() -> None:
    async with running() as admin_api:
        terms = {"weight": 2, "limits": {"tokens_per_minute": 1000}, "model_limits": {"m": {"concurrency": 3}}}
        status, tenant = await admin_api.ask(admin_api.admin, "PUT", "/tenants/green", terms)
        assert (status, tenant["weight"], tenant["limits"]) == (200, 2, {"tokens_per_minute": 1000})
        assert [each["name"] for each in (await admin_api.ask(admin_api.admin, "GET", "/tenants"))[1]["data"]] == [
            "green"
        ]
        assert (await admin_api.ask(admin_api.admin, "PUT", "/tenants/green", {"name": "blue"}))[0] == 400
        assert (await admin_api.ask(admin_api.admin, "PUT", "/tenants/a%20b", {}))[0] == 400
        assert (await admin_api.ask(admin_api.admin, "DELETE", "/tenants/green"))[0] == 200
        assert (await admin_api.ask(admin_api.admin, "DELETE", "/tenants/green"))[0] == 400


@pytest.mark.parametrize("cut", [0, 7], ids=["whole", "without its checksum"])
@pytest.mark.parametrize("method", ["DELETE", "GET", "POST"])
async def test_a_token_in_the_place_of_an_id_is_in_no_log_and_no_answer(
    method: str, cut: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever finds a leaked token wants to revoke it, and pastes it where the id belongs."""
    caplog.set_level(logging.DEBUG)
    async with running(tmp_path) as admin_api:
        _, made = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue", "name": "leaked"})
        leaked = made["token"][: len(made["token"]) - cut]
        answers = [
            await admin_api.ask(token, method, f"/keys/{leaked}")
            for token in (admin_api.admin, admin_api.own, leaked, "none")
        ]
        answers.append(await admin_api.ask(admin_api.own, "POST", "/quarantine", {"reason": leaked}))
    text = "\n".join((written_in(tmp_path), caplog.text, json.dumps(answers)))
    assert made["id"] in text
    assert leaked.split("_")[2] not in text


async def test_every_change_and_every_refusal_is_in_the_audit_log_and_no_token_is(tmp_path: Path) -> None:
    async with running(tmp_path) as admin_api:
        _, made = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue"})
        _, rotated = await admin_api.ask(admin_api.admin, "POST", f"/keys/{made['id']}/rotate", {})
        await admin_api.ask(admin_api.admin, "DELETE", f"/keys/{made['id']}")
        await admin_api.ask(admin_api.admin, "PUT", "/tenants/blue", {"weight": 2})
        await admin_api.ask(admin_api.own, "POST", "/keys", {"tenant": "blue"})
        tokens = [admin_api.admin, admin_api.own, made["token"], rotated["token"]]
    text = written_in(tmp_path)
    actions = [json.loads(line)["action"] for line in text.splitlines()]
    assert actions == ["keys.create", "keys.rotate", "keys.revoke", "tenants.set", "refused"]
    assert not any(token.split("_")[2] in text for token in tokens)


async def test_on_a_full_disk_nothing_changes_and_the_answer_says_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path) as admin_api:
        _, kept = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue"})
        await admin_api.ask(admin_api.admin, "PUT", "/tenants/blue", {"weight": 2})
        path = tmp_path / "audit-000001.jsonl"
        before = path.read_bytes()
        listings = "/keys", "/tenants"
        states = [await admin_api.ask(admin_api.admin, "GET", listing) for listing in listings]
        with full_disk(after=path, room_bytes=100):
            for method, where, body in [
                ("POST", "/keys", {"tenant": "blue"}),
                ("POST", f"/keys/{kept['id']}/rotate", {}),
                ("DELETE", f"/keys/{kept['id']}", None),
                ("PUT", "/tenants/blue", {"weight": 3}),
                ("PUT", "/tenants/green", {}),
            ]:
                status, answer = await admin_api.ask(admin_api.admin, method, where, body)
                assert (status, answer["error"]["code"]) == (507, "storage_failed"), where
                assert "Nothing was changed" in answer["error"]["message"]
                assert "Make room" in answer["error"]["message"]
            assert (await admin_api.ask(admin_api.user, "GET", "/keys"))[0] == 403, "refused, written down or not"
        assert [await admin_api.ask(admin_api.admin, "GET", listing) for listing in listings] == states
        assert (await admin_api.ask(kept["token"], "GET", "/me"))[0] == 200
        assert path.read_bytes() == before
        assert (await admin_api.ask(admin_api.admin, "DELETE", f"/keys/{kept['id']}"))[0] == 200
    assert verify(tmp_path).faults == ()


async def test_a_change_that_its_store_has_no_room_for_is_507_and_its_line_is_taken_back(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    async with running(tmp_path / "audit", store) as admin_api:
        with full_disk(after=tmp_path / "keys" / f"{FILE_NAME}-wal"):
            status, answer = await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue"})
            assert (status, answer["error"]["code"]) == (507, "storage_failed")
            assert "access.state_dir" in answer["error"]["message"]
        assert (await admin_api.ask(admin_api.admin, "GET", "/keys?tenant=blue"))[1]["data"] == []
        assert (await admin_api.ask(admin_api.admin, "POST", "/keys", {"tenant": "blue"}))[0] == 200
    actions = [json.loads(line)["action"] for line in written_in(tmp_path / "audit").splitlines()]
    assert actions == ["keys.create", "keys.create.failed", "keys.create"]
