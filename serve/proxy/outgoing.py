"""The request as an engine gets it, and the stages that its answer passes first: by pool, because engines differ."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec import Struct
from packaging.version import InvalidVersion, Version

from policies import Candidate, PoolFacts
from serve.config.access import AccessConfig
from serve.config.gateway import GatewayConfig
from serve.config.pool import AUTO, NO_GRAMMAR, ModelConfig, PoolConfig, engine_of
from serve.errors import encode_json
from serve.limits.answer_meter import AnyMeter
from serve.proxy.headers import forwarded_headers
from serve.proxy.raw_text import raw_pools
from serve.proxy.routed_request import RoutedRequest
from serve.request.completion import CHAT_PATH, COMPLETION_PATHS, NONE, given
from serve.request.continuation import obstacle
from serve.request.patch import OPT_OUT, REPORT, BodyPatch, ReasoningField, add_xargs, ask_ids, ask_usage
from serve.routing.pool import SLOT_HEADER, Endpoint
from serve.stream.line import PASS, Stage
from serve.stream.stages import Rename, TokenIds, Without

DRAFTS_HEADER = "x-specgate-drafts"
# Of two members of one name they take the last, as the gateway does, or none. RapidJSON and gjson take the first.
_TAKE_THE_LAST = frozenset({"vllm", "sglang", "llamacpp", "trtllm", "tgi", "sim"})
# By whether the client may see the reports on drafts, and whether usage is wanted behind it.
_FOR_CLIENTS = {
    (sees, wants): PASS if sees and wants else Without(drafts=not sees, usage=not wants)
    for sees in (False, True)
    for wants in (False, True)
}
_SALT_FIELD = "cache_salt"
_SALT_PURPOSE = b"specgate cache salt"
# From here on vLLM has no other engine than the one that knows salts, and SGLang puts them into its keys.
_KNOW_SALTS = {"vllm": Version("0.11"), "sglang": Version("0.5.3")}
_MOST_TENANTS = 4096
_TEXT = msgspec.json.Decoder(str)


class _Pool(NamedTuple):
    """The wants of a pool's engines.

    Attributes:
        kind: Of the pool; only remote engines are not ours.
        served_name: Their own name of the model; None if it is ours.
        reasoning_field: The name under which they read reasoning; None if they read any.
        rewritten: A guard may write the end of their streams itself.
        tells_ids: They tell the ids of tokens, and go on from them.
        goes_on: They go on with plain answers.
    """

    kind: str
    served_name: str | None
    reasoning_field: ReasoningField | None
    rewritten: bool
    tells_ids: bool
    goes_on: bool

    @property
    def own(self) -> bool:
        return self.kind != "remote"


class Outgoing(Struct, frozen=True):
    """What is sent in an attempt, and the stages that its answer passes first, in their order.

    Attributes:
        ids: The stage that takes the ids of tokens out of the bytes, if we ask for them.
        meter: The stage that reads the usage.
    """

    patch: BodyPatch
    ids: TokenIds | None
    meter: AnyMeter
    stages: Sequence[Stage]


class OutgoingRequests:
    """Makes attempts of requests: what is sent to a pool's engines, and how their answers are read. With `reports`,
    engines of ours are to report on their drafts.
    """

    def __init__(self, config: GatewayConfig, *, reports: bool) -> None:
        self._reports = reports
        self._salts = CacheSalts(config.access)
        self._raw = raw_pools(config)
        self._named_once: frozenset[tuple[str, str]] = frozenset()
        self._pass_headers = config.requests.pass_headers
        self._pools: Mapping[tuple[str, str], _Pool] = {
            (name, pool_name): _Pool(
                pool.kind,
                pool.served_name,
                pool.reasoning_field,
                model.guard.mode in ("heal", "strict"),
                tells_ids(model, pool),
                goes_on(model, pool),
            )
            for name, model, pool_name, pool in config.each_pool()
        }

    def resumes(self, request: RoutedRequest, candidate: Candidate) -> bool:
        """Returns whether a candidate's engines go on with an answer to a request that broke."""
        pool = self._pools[request.decision.model, candidate.pool]
        return pool.tells_ids if request.guarded else pool.goes_on

    def prompt_of(self, request: RoutedRequest, candidate: Candidate) -> bytes:
        """Returns the body of a request as far as a candidate's engines make their prompt of it."""
        patch, pool = request.patch, self._pools[request.decision.model, candidate.pool]
        if pool.reasoning_field:
            patch = patch.copy()
            patch.name_reasoning(pool.reasoning_field)
        return patch.apply(request.body)

    def adopt(self, facts: Iterable[PoolFacts]) -> None:
        """Takes what is known of the pools' engines now."""
        known = tuple(facts)
        self._salts.adopt(known)
        self._named_once = frozenset((each.model, each.pool) for each in known if each.engine not in _TAKE_THE_LAST)

    def salt(self, request: RoutedRequest, pool: str) -> str:
        """Returns the salt under which a pool's engines cache a request's prompt; empty for the one that all share."""
        return self._salts.of(request, pool) if request.path in COMPLETION_PATHS else ""

    def kind(self, request: RoutedRequest, candidate: Candidate) -> str:
        """Returns the kind of a candidate's pool."""
        return self._pools[request.decision.model, candidate.pool].kind

    def outgoing(self, request: RoutedRequest, candidate: Candidate, last_frames: Stage = PASS) -> Outgoing:
        """Returns what an attempt at a candidate is made of; its meter is that of the request's charge. The load learns
        from what `last_frames` keeps.
        """
        model, parsed, charge = request.decision.model, request.parsed, request.charge
        pool = self._pools[model, candidate.pool]
        patch = request.patch
        xargs = {**OPT_OUT} if candidate.opt_out else {}
        if request.guarded and pool.own:
            xargs |= REPORT
        chat = request.path == CHAT_PATH  # of other text a pool's grammar says nothing
        raw = self._raw.get((model, candidate.pool)) if self._raw and chat else None
        asks_ids = pool.tells_ids and request.guarded and _may_resume(request)
        asks_usage = (
            not request.wants_usage
            and request.continued is None  # whose body asks already
            and (
                charge.counts or _may_be_cut(pool, request) or (self._reports and _may_report(pool, request, candidate))
            )
        )
        salt = self.salt(request, candidate.pool) if self._salts.is_on else ""
        once = (model, candidate.pool) in self._named_once
        if xargs or asks_usage or pool.served_name or pool.reasoning_field or raw or asks_ids or salt or once:
            patch = patch.copy()
            patch.once = once
            if salt:
                add_salt(patch, request, salt)
            if raw:
                raw.ask(patch, parsed)
            if xargs:
                add_xargs(patch, parsed, xargs)
            if pool.served_name:
                patch.set("model", encode_json(pool.served_name))
            if pool.reasoning_field:
                patch.name_reasoning(pool.reasoning_field)
            if asks_usage:
                ask_usage(patch, parsed)
            if asks_ids:
                ask_ids(patch, parsed)
        ids = TokenIds(len(request.body)) if asks_ids else None
        kept = None if request.continued is None else request.continued.prefix
        meter = charge.attempt(candidate.pool, candidate.speculative, ids, kept)
        stages = (
            ids or PASS,
            last_frames,
            request.continued or PASS,
            meter,
            _FOR_CLIENTS[request.sees_drafts, request.wants_usage or (request.guarded and pool.rewritten)],
            Rename(pool.served_name, model) if pool.served_name else PASS,
            raw.reader(parsed, reports=request.guarded) if raw else PASS,
        )
        return Outgoing(patch, ids, meter, [stage for stage in stages if stage is not PASS])

    def headers(self, request: RoutedRequest, endpoint: Endpoint, number: int) -> dict[str, str]:
        """Returns the headers of an attempt; engines mix up requests that share an id, so that each has its own."""
        headers = forwarded_headers(request.headers, endpoint.key, self._pass_headers)
        headers["x-request-id"] = f"{request.attribution.engine_id}-{number}"
        if endpoint.slot:
            headers[SLOT_HEADER] = endpoint.slot
        return headers


def usage_for(wanted: bool) -> Stage:
    """Returns the stage that takes the usage out of a stream, unless it is wanted behind it."""
    return _FOR_CLIENTS[True, wanted]


def _may_resume(request: RoutedRequest) -> bool:
    """Returns whether a guarded answer may be gone on with exactly, so that the ids of its tokens are needed."""
    asked = bytes(request.parsed.return_token_ids) == b"true"  # then they are the client's
    return not asked and obstacle(request.features) is None


def tells_ids(model: ModelConfig, pool: PoolConfig) -> bool:
    """Returns whether answers of a pool may be gone on with, and its engines can do so: only vLLM's tell all ids."""
    known = model.grammar not in (AUTO, NO_GRAMMAR) and pool.kind != "sim"
    return known and engine_of(pool) == "vllm" and model.guard.heals and model.guard.resume != "off"


def goes_on(model: ModelConfig, pool: PoolConfig) -> bool:
    """Returns whether plain answers may be gone on with in a pool: its engines may know what tokens a text is. One of
    which nobody has said what it is can be asked.
    """
    return engine_of(pool) in ("vllm", "remote") and model.guard.resumes_plain


def _may_be_cut(pool: _Pool, request: RoutedRequest) -> bool:
    """Returns True if the limit of tokens may cut a call of a stream, of which only the usage tells the guard."""
    parsed = request.parsed
    limited = given(parsed.max_tokens) or given(parsed.max_completion_tokens)
    return request.guarded and pool.rewritten and limited and bool(parsed.stream and parsed.tools)


def _may_report(pool: _Pool, request: RoutedRequest, candidate: Candidate) -> bool:
    """Returns True if an engine of ours is to report on a stream's drafts, which it does with the usage.

    Not where the guard only observes, or there is none: such a request reaches its engine as it came.
    """
    return (
        request.guarded
        and candidate.speculative
        and request.features.stream
        and request.parsed.stream_options is NONE
        and pool.own
        and pool.rewritten
    )


class CacheSalts:
    """The salts of prefix caches, a tenant's each: nobody learns from the time to a first token what others have asked.

    They are no secret: whoever reaches an engine past the gateway has its key. A client can't have the salt of another
    tenant all the same, since what it gives is hashed with its own tenant's. Off if tenants are to share caches.
    """

    def __init__(self, config: AccessConfig) -> None:
        self.is_on = config.mode == "required" and config.cache_salt == "tenant"
        self._pools: frozenset[tuple[str, str]] = frozenset()
        self._tenants: dict[str, bytes] = {}

    def adopt(self, facts: Iterable[PoolFacts]) -> None:
        """Takes what is known of the pools' engines now."""
        if self.is_on:
            self._pools = frozenset((each.model, each.pool) for each in facts if knows_salts(each))

    def of(self, request: RoutedRequest, pool: str) -> str:
        """Returns the salt of a request in a pool; empty without one."""
        if (request.decision.model, pool) not in self._pools:
            return ""
        tenant = self._tenant(request.asker.tenant)
        own = _own_salt(request)
        salt = hmac.digest(tenant, own.encode("utf-8", "surrogatepass"), sha256) if own else tenant
        return urlsafe_b64encode(salt).decode().rstrip("=")

    def _tenant(self, name: str) -> bytes:
        salt = self._tenants.get(name)
        if salt is None:
            if len(self._tenants) >= _MOST_TENANTS:
                self._tenants.clear()
            salt = self._tenants[name] = hmac.digest(_SALT_PURPOSE, name.encode(), sha256)
        return salt


def add_salt(patch: BodyPatch, request: RoutedRequest, salt: str) -> None:
    """Puts a salt into a body, in the place of the client's."""
    value = b'"%b"' % salt.encode()
    if request.parsed.cache_salt is NONE:
        patch.add(_SALT_FIELD, value)
    else:
        patch.set(_SALT_FIELD, value)


def knows_salts(facts: PoolFacts) -> bool:
    """Returns True if a pool's engines take a salt; others refuse it, or ignore it."""
    if facts.engine == "sim":
        return True
    since = _KNOW_SALTS.get(facts.engine or "")
    if since is None:
        return False
    if facts.engine_version is None:
        return facts.kind == "vllm"  # one of ours, which has not reported yet
    try:
        return Version(Version(facts.engine_version).public) >= since
    except InvalidVersion:
        return False


def _own_salt(request: RoutedRequest) -> str:
    """Returns the client's own salt; empty for none, and for what is no text."""
    try:
        return _TEXT.decode(request.parsed.cache_salt)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
