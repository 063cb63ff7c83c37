"""Keeps the policy in force true to its sources: the configuration, the folder of advisories, and the engines."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies import Advisory, Policy
from policies.freshness import EXPIRED, without_knowledge
from serve.config.compiled_policy import SignedIndex, compile_for, read_advisories, signed_index
from serve.config.gateway import GatewayConfig, LoadMode, PolicyConfig
from serve.config.signature import SIGNED
from serve.config.signed_verdicts import QualifiedEngine, read_qualifications
from serve.errors import ConfigError
from serve.gateway.pools import PoolKey, Scale, reported_facts
from serve.routing.pool import Pool
from serve.shadow.copies import NULL_SHADOWS, NullShadows, Shadows

log = logging.getLogger("ray.serve.specgate.gateway")

FACTS_PERIOD_S = 30.0
FACTS_RETRY_S = 1.0  # until every pool has reported once
PERIOD_S = 10.0  # between looks at a folder
_UPDATABLE = frozenset({"policy", "version", "least_replicas"})

Stamp = frozenset[tuple[str, int, int, int, int]]
Stamps = tuple[tuple[str | None, Stamp], ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """All that is read for a policy beside its settings; `index` vouches for the advisories.

    Attributes:
        stamps: Of the folders, as they were before they were read: what changes later shows.
    """

    advisories: tuple[Advisory, ...]
    qualified: tuple[QualifiedEngine, ...]
    index: SignedIndex | None
    stamps: Stamps


class PolicyUpdates:
    """Compiles the policy again whenever one of its sources changes.

    A bad update is refused and the old policy stays: an operator's typing error must not take the gateway down. The
    policy of the configuration is in force, from the sources that are given. `switch_load` raises `ConfigError` to
    refuse an update; `shadows` get what candidates' engines report, as for decisions there are no such pools.

    Attributes:
        facts: What running replicas have reported so far, by pool; it changes in place.
        refused: Why the last update was refused; None if it was adopted.
    """

    def __init__(
        self,
        config: GatewayConfig,
        sources: Sources,
        scale: Scale,
        pools: Mapping[PoolKey, Pool],
        adopt: Callable[[Policy], None],
        switch_load: Callable[[LoadMode], None],
        shadows: Shadows | NullShadows = NULL_SHADOWS,
    ) -> None:
        self.facts: dict[PoolKey, dict[str, Any]] = {}
        self.refused: str | None = None
        self._config = config
        self._policy_config = config.policy
        self._sources = sources
        self._expired = _has_expired(self._sources)
        self._scale = scale
        self._pools = pools
        self._adopt = adopt
        self._switch_load = switch_load
        self._shadows = shadows

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Adopts another policy, and what pools should have, without dropping a request; or refuses all of that."""
        try:
            policy_config, least = read_update(user_config, self._config, self._scale)
            changed = policy_config is not self._policy_config or "version" in user_config
            if changed or self.refused is not None:
                self._put_in_force(policy_config, read_sources(policy_config, strict=True))
            self._scale.adopt(least)
        except (ConfigError, ValueError) as error:
            self._refuse(error)

    def learn(self, facts: Mapping[PoolKey, dict[str, Any]]) -> None:
        """Takes what engines report of themselves: versions and settings can change with every restart."""
        expired, known = _has_expired(self._sources), {**self.facts, **facts}
        if expired != self._expired or known != self.facts:
            policy = self._compiled(self._policy_config, self._sources, known)
            self._expired = expired  # only now: what can't be compiled is tried again at the next report
            self.facts |= facts
            self._adopt(policy)
            self._shadows.adopt(self.facts)

    async def run(self) -> None:
        """Watches the engines, and the folders of advisories and of verdicts, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_engines())
            group.create_task(self._watch_folders())

    async def _watch_engines(self) -> None:
        while True:
            reports = await asyncio.gather(*map(reported_facts, self._pools.values()))
            facts = {key: report for key, report in zip(self._pools, reports, strict=True) if report is not None}
            self.learn(facts)
            await asyncio.sleep(FACTS_PERIOD_S if len(facts) == len(self._pools) else FACTS_RETRY_S)

    async def _watch_folders(self) -> None:
        """Reads the folders again when they hold other files than those in force, until they could be read.

        A change counts once it has stood still for a period: a folder that is being copied is not read half-way.
        """
        before, is_refused = None, False
        while True:
            policy_config = self._policy_config
            now = await asyncio.to_thread(_stamps_of, policy_config)
            if now == before and policy_config is self._policy_config and (is_refused or now != self._sources.stamps):
                is_refused = not await self._reread()
            before = now
            await asyncio.sleep(PERIOD_S)

    async def _reread(self) -> bool:
        """Adopts what the folders of advisories and verdicts hold now; if one can't be read, all the old ones stay, and
        False is returned.
        """
        policy_config = self._policy_config
        try:
            sources = await asyncio.to_thread(read_sources, policy_config, strict=True)
            index, in_force = sources.index, self._sources.index
            if index and in_force and index.issued_s < in_force.issued_s:
                raise ConfigError(f"the signed index of {policy_config.advisories} is older than the one in force")
            if policy_config is self._policy_config:  # no other policy came in the meantime
                self._put_in_force(policy_config, sources)
        except ConfigError as error:
            if str(error) != self.refused:  # or it has been said
                self._refuse(error)
            return False
        return True

    def _put_in_force(self, policy_config: PolicyConfig, sources: Sources) -> None:
        policy = self._compiled(policy_config, sources, self.facts)
        self._switch_load(policy_config.load)
        known = {advisory.id for advisory in self._sources.advisories}
        self._policy_config = policy_config
        self._sources = sources
        self._expired = _has_expired(sources)
        self.refused = None
        self._adopt(policy)
        log.info("adopted policy %s", policy.digest)
        added = [each for each in sources.advisories if each.id not in known]
        if concern := [each for each in added if any(map(each.matches, policy.facts))]:
            names = ", ".join(each.id for each in concern)
            log.warning("new advisories concern your pools: %s", names)

    def _compiled(self, policy: PolicyConfig, sources: Sources, facts: Mapping[PoolKey, Mapping[str, Any]]) -> Policy:
        advisories = sources.advisories
        if _has_expired(sources) and advisories[-1].id != EXPIRED:  # it has since they were read
            advisories = (*advisories, without_knowledge())
        config = self._config.model_copy(update={"policy": policy})
        return compile_for(config, facts, advisories, sources.qualified)

    def _refuse(self, error: Exception) -> None:
        self.refused = str(error)
        log.error("refused the new policy, kept the old one: %s", error)


def read_update(
    user_config: Mapping[str, Any], config: GatewayConfig, scale: Scale
) -> tuple[PolicyConfig, Mapping[PoolKey, int]]:
    """Returns the policy that Ray Serve's `user_config` asks for, and the least replicas of every pool.

    Raises:
        ConfigError: It has an unknown key, or names a pool that does not exist.
        ValueError: A value is wrong.
    """
    if unknown := set(user_config) - _UPDATABLE:
        known = ", ".join(sorted(_UPDATABLE))
        raise ConfigError(f"user_config: unknown keys {sorted(unknown)}; known keys: {known}")
    least = scale.read(user_config.get("least_replicas", {}))
    update = user_config.get("policy")
    return (config.policy if update is None else PolicyConfig.model_validate(update)), least


def read_sources(config: PolicyConfig, *, strict: bool = False) -> Sources:
    """Reads the sources of a policy; see `read_advisories` and `read_qualifications` for what can't be read.

    Raises:
        ConfigError: One of them can't be read.
    """
    stamps = _stamps_of(config)
    advisories, qualified = read_advisories(config, strict=strict), read_qualifications(config, strict=strict)
    return Sources(advisories, qualified, signed_index(config), stamps)


def _has_expired(sources: Sources) -> bool:
    return sources.index is not None and sources.index.expired


def _stamps_of(config: PolicyConfig) -> Stamps:
    folders = config.advisories, config.qualifications
    return tuple((folder, stamp_of(Path(folder)) if folder else frozenset()) for folder in folders)


def stamp_of(folder: Path) -> Stamp:
    """Returns what tells one state of a folder from another, without reading its files."""
    stamps = set()
    for path in (*folder.glob("*.yaml"), *folder.glob(f"*{SIGNED}")):
        try:
            stat = path.stat()  # of the file itself: a mounted ConfigMap changes by swapping a link
        except FileNotFoundError:  # it went while we looked
            continue
        except OSError:  # a link to itself; whoever reads the folder says so
            stamps.add((path.name, 0, 0, 0, 0))
            continue
        stamps.add((path.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    return frozenset(stamps)
