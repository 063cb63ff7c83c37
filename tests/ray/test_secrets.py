"""No key, secret or prompt stands anywhere that somebody looks: canaries in every field, then a search everywhere."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from support.cluster import Cluster, running
from support.limits_store import StoreServer, needs_server

from serve.access.key_file import KeyTerms
from serve.access.key_store import KeyStore
from serve.access.key_text import digest, new_id, new_token
from serve.config.access import RIGHTS

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), needs_server]
REMOTE_KEY = "SPECGATE_TEST_REMOTE_KEY"
TOLD_S = 60.0  # within which spans are written and usage is counted, however busy the machine
# What Ray tells of a cluster, in its dashboard and by `ray list ... --detail`.
DASHBOARD = (
    "/api/serve/applications/", "/nodes?view=details", "/nodes?view=summary", "/logical/actors", "/api/jobs/",
    *(f"/api/v0/{kind}?detail=1&limit=1000" for kind in ("actors", "tasks", "workers", "nodes", "placement_groups")),
    "/api/v0/cluster_events", "/api/cluster_status", "/api/component_activities",
)  # fmt: skip
ADMIN_PORT = ("/metrics", "/admin/v1/board", "/admin/v1/audit", "/admin/v1/usage", "/admin/v1/keys", "/admin/v1/policy")


class Canaries:
    """Words that stand nowhere else, by what they are part of."""

    def __init__(self) -> None:
        self.by_field: dict[str, str] = {}

    def __call__(self, field: str) -> str:
        return self.by_field.setdefault(field, f"canary{secrets.token_hex(12)}")

    def token(self, field: str) -> str:
        token = new_token(new_id())
        self.by_field[field] = token.split("_")[2]
        return token

    def found_in(self, text: str) -> list[str]:
        return [field for field, word in self.by_field.items() if word in text]


@pytest.fixture(scope="module")
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, canaries: Canaries) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "console")  # which is a replica's log
        patch.setenv(REMOTE_KEY, canaries("key of a remote pool"))
        patch.setenv("SPECGATE_ENGINE_KEY", canaries("key of the engines"))
        patch.setenv("HF_TOKEN", canaries("token of a model hub"))
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={canaries('key of a collector')}")
        with running(tmp_path_factory.mktemp("cluster")) as found:
            yield found


def in_file(folder: Path, secret: str) -> Path:
    """Writes a secret to a file of its own, where nobody searches for it."""
    file = folder / "secret"
    file.write_text(secret)
    return file


def config(folder: Path, key: Path, store: Mapping[str, str]) -> dict[str, Any]:
    faults = {"truncated_string": 0.5, "marker_leak": 0.5}
    sim = {"kind": "sim", "ray_actor_options": {"num_cpus": 0.1}}
    facts = {"engine_version": "0", "drafter": "none", "tool_parser": "none", "prefix_caching": False}
    broken = {**sim, "sim": {"faults": faults, "num_speculative_tokens": 3}, "facts": facts}
    far = {"kind": "remote", "url": "http://127.0.0.1:9", "api_key_env": REMOTE_KEY, "facts": {"method": "none"}}
    farther = {**far, "api_key_env": None, "api_key_file": str(key)}
    oidc = {"issuer": "https://id.example", "audience": "specgate", "algorithms": ["ES256"]}
    access = {"mode": "required", "file": str(folder / "access.yaml"), "state_dir": str(folder / "state")}
    return {
        "models": {
            "m": {"family": "sim", "grammar": "kimi_k2", "pools": {"speculative": broken, "standard": sim}},
            "broken": {"family": "sim", "grammar": "kimi_k2", "pools": {"standard": {**broken, "facts": {}}}},
            "far": {"family": "qwen3", "grammar": "hermes", "pools": {"standard": far}},
            "farther": {"family": "qwen3", "grammar": "hermes", "pools": {"standard": farther}},
        },
        "access": {**access, "oidc": {**oidc, "jwks_file": str(folder / "jwks.json")}},
        "admin": {"audit_dir": str(folder / "audit")},
        "rate_limits": {"store": store},
        "telemetry": {"log_requests": 1.0},
        "ray_actor_options": {"num_cpus": 0.1},
    }


@asynccontextmanager
async def shared_store(folder: Path, password: Path) -> AsyncIterator[dict[str, str]]:
    """Where limits are shared, with a password."""
    server = StoreServer(folder, "--requirepass", await asyncio.to_thread(password.read_text))
    try:
        await server.start(replace(server.config, password_file=str(password)))
        yield {"url": server.config.url, "password_file": str(password)}
    finally:
        server.stop()


class Keys:
    """A key of each source, made before the gateway starts."""

    def __init__(self, folder: Path, canaries: Canaries) -> None:
        with closing(KeyStore(folder / "state")) as store:
            issued = store.create(KeyTerms(tenant="acme", scopes=tuple(sorted(RIGHTS))))
        self.id, self.stored = issued.key.id, issued.token
        canaries.by_field["key of the store"] = issued.token.split("_")[2]
        self.declared = canaries.token("key of the file")
        row = {"id": self.declared[4:14], "tenant": "acme", "hash": f"sha256:{digest(self.declared).hex()}"}
        (folder / "access.yaml").write_text(yaml.safe_dump({"tenants": {"acme": {}}, "keys": [row]}))
        self.wrong = canaries.token("key of nobody")
        signer = ec.generate_private_key(ec.SECP256R1())
        public = {**ECAlgorithm.to_jwk(signer.public_key(), as_dict=True), "kid": "one"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
        claims = {"iss": "https://id.example", "aud": "specgate", "sub": "anna", "tenant": "acme"}
        claims |= {"exp": int(time.time()) + 3600, "email": canaries("claim of an identity token")}
        self.person = jwt.encode(claims, signer, "ES256", {"kid": "one"})
        canaries.by_field["signature of an identity token"] = self.person.rpartition(".")[2]


def bodies(canaries: Canaries) -> list[tuple[str, dict[str, Any]]]:
    """Requests of every API, right and wrong, with canaries in all that is a client's."""
    word = canaries("word of a schema")
    parameters = {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": [word]}},
        "required": ["place"],
        "additionalProperties": False,
        "description": canaries("description of a schema"),
    }
    function = {"name": "look", "description": canaries("description of a tool"), "parameters": parameters}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": canaries("malformed arguments")}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": canaries("system prompt")},
        {"role": "user", "content": canaries("prompt"), "name": canaries("name of a participant")},
        {"role": "assistant", "content": canaries("earlier answer"), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": canaries("result of a tool")},
    ]
    chat = {"model": "m", "messages": messages, "max_tokens": 64, "user": canaries("user")}
    tools = {**chat, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    shape = {"name": "shape", "schema": parameters}
    form = {**chat, "response_format": {"type": "json_schema", "json_schema": shape}}
    anthropic = {
        "model": "m",
        "max_tokens": 64,
        "system": canaries("system prompt of Messages"),
        "messages": [{"role": "user", "content": canaries("prompt of Messages")}],
        "tools": [{"name": "look", "description": word, "input_schema": parameters}],
    }
    responses = {
        "model": "m",
        "instructions": canaries("instructions"),
        "input": canaries("prompt of Responses"),
        "tools": [{"type": "function", **function}],
    }
    path = "/v1/chat/completions"
    right = [chat, tools, form]
    return [
        *((path, {**each, "stream": stream}) for each in right for stream in (False, True)),
        *((path, {**tools, "model": "broken", "stream": stream}) for stream in (False, True)),
        *((path, {**each, "model": model}) for each in right for model in ("far", "farther")),
        (path, {**chat, "model": "a model that there is not"}),  # spans name it: operators want to know
        (path, {**chat, "temperature": canaries("wrong type")}),
        (path, {**chat, "chat_template": canaries("field that is not allowed")}),
        (path, {**chat, "messages": [{"role": canaries("role"), "content": [canaries("part")]}]}),
        (path, {**chat, "metadata": {canaries("name of metadata"): canaries("metadata")}}),
        ("/v1/completions", {"model": "m", "prompt": canaries("prompt of a completion"), "max_tokens": 8}),
        *(("/v1/messages", {**anthropic, "stream": stream}) for stream in (False, True)),
        *(("/v1/responses", {**responses, "stream": stream}) for stream in (False, True)),
        ("/v1/messages/count_tokens", {**anthropic, "model": "m"}),
        ("/v1/route/explain", tools),
    ]


async def ask(cluster: Cluster, keys: Keys, canaries: Canaries) -> list[tuple[int, str]]:
    """Sends everything as everybody; returns status, headers and body of each response."""
    answers: list[tuple[int, str]] = []
    headers = {"x-session-id": canaries("session"), "x-api-canary": canaries("header"), "cookie": canaries("cookie")}
    async with aiohttp.ClientSession(headers=headers) as session:
        for key in (keys.stored, keys.declared, keys.person, keys.wrong):
            for path, body in bodies(canaries):
                for named in ({"authorization": f"Bearer {key}"}, {"x-api-key": key})[: 2 if body.get("stream") else 1]:
                    async with session.post(cluster.url + path, json=body, headers=named) as response:
                        answers.append((response.status, f"{response.headers} {await response.text()}"))
            named = {"authorization": f"Bearer {key}"}
            url = f"{cluster.url}/v1/chat/completions?{canaries('query')}=1"
            async with session.post(url, data=canaries("no JSON"), headers=named) as response:
                answers.append((response.status, f"{response.headers} {await response.text()}"))
            order = {"model": "m", "pool": "standard", "until": canaries("wrong order")}
            async with session.post(f"{cluster.admin_api}/admin/v1/quarantine", json=order, headers=named) as response:
                answers.append((response.status, f"{response.headers} {await response.text()}"))
    return answers


async def reply(cluster: Cluster, key: str) -> dict[str, str]:
    """Everything that the admin API and Ray's dashboard tell, by where."""
    found = {}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session:
        for base, paths in ((cluster.admin_api, ADMIN_PORT), (cluster.dashboard, DASHBOARD)):
            for path in paths:
                async with session.get(base + path) as response:
                    assert response.status == 200 or base == cluster.dashboard, (path, await response.text())
                    found[path] = await response.text(errors="replace")
    return found


def written(*folders: Path) -> dict[str, str]:
    """What stands in all files, by path; logs, state, spans, configurations of Ray and HAProxy."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes().decode("utf-8", "replace") for path in files}


def processes(cluster: Cluster) -> str:
    """Titles and arguments of everything that belongs to the cluster."""
    nodes = [each for each in cluster._nodes if each.is_running()]
    return "\n".join(
        " ".join([each.name(), *each.cmdline()]) for node in nodes for each in (node, *node.children(recursive=True))
    )


async def test_keys_secrets_and_prompts_stand_nowhere(
    cluster: Cluster, canaries: Canaries, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = Keys(tmp_path, canaries)
    far, limits = tmp_path_factory.mktemp("far"), tmp_path_factory.mktemp("limits")
    key, password = in_file(far, canaries("key of a pool in a file")), in_file(limits, canaries("password of a store"))
    async with shared_store(limits, password) as store:
        await cluster.deploy(config(tmp_path, key, store))
        await until_known(cluster, keys.stored)
        answers = await ask(cluster, keys, canaries)
        deadline_s = time.monotonic() + TOLD_S
        while True:
            seen = {**written(cluster.files, tmp_path), **await reply(cluster, keys.stored), "ps": processes(cluster)}
            spans = [where for where, text in seen.items() if '"gen_ai.usage.output_tokens"' in text]
            lines = [where for where, text in seen.items() if "POST /v1/messages 200 in" in text]
            counted = 'tenant="acme"' in seen["/metrics"]  # once the ledger has begun and heard of it
            if (spans and lines and counted) or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(1)
    assert {200, 400, 401, 404} <= {status for status, _ in answers}, "every outcome has its chance to say something"
    # The search finds what is there: spans, ids of keys, titles of processes, the actors' rows.
    assert spans, "no span was written"
    assert lines, "no request has a line in the log"
    assert keys.id in seen["/admin/v1/keys"]
    assert counted, "no usage is among the metrics"
    assert any("/audit/" in where and keys.declared[4:14] in text for where, text in seen.items())
    assert "ServeReplica:specgate:Gateway" in seen["ps"]
    actors = json.loads(seen["/api/v0/actors?detail=1&limit=1000"])["data"]["result"]["result"]
    assert {"LedgerActor", "QuarantineActor", "LoadBoard"} <= {actor["class_name"] for actor in actors}
    assert {where: canaries.found_in(text) for where, text in seen.items() if canaries.found_in(text)} == {}
    # Clients are told about their own fields, but no key is ever repeated.
    repeated = {field for _, text in answers for field in canaries.found_in(text)}
    assert not {field for field in repeated if "key" in field or "token" in field}


async def until_known(cluster: Cluster, key: str) -> None:
    """Waits until the gateway has heard of the store's keys."""
    async with aiohttp.ClientSession(headers={"x-api-key": key}) as session:
        for _ in range(120):
            async with session.get(f"{cluster.url}/v1/models") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.5)
    raise AssertionError("the key is not accepted")
