"""The load where nobody counts it: decisions stay as they are, and nothing is learned."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Literal

from policies import Candidate, Decision, Policy, RequestFeatures
from serve.errors import ConfigError
from serve.load.live_load import LiveLoad
from serve.load.report import LoadReport, PoolKey
from serve.load.sent import Sent
from serve.stream.line import PASS, Stage


class NullSent:
    """Counts nothing; see `Sent`."""

    __slots__ = ()

    def until(self, resources: AsyncExitStack) -> None:
        """Does nothing."""

    def posted(self, candidate: Candidate) -> None:
        """Does nothing."""

    def last_frames(self) -> Stage:
        """Returns a stage that keeps nothing."""
        return PASS


_NULL_SENT = NullSent()


class NullLoad:
    """Orders nothing; see `LiveLoad`."""

    learns = False

    def adopt(self, policy: Policy) -> None:
        """Does nothing."""

    def switch(self, mode: Literal["off", "observe", "route"]) -> None:
        """Stays off.

        Raises:
            ConfigError: It is to do anything else.
        """
        if mode != "off":
            raise ConfigError("policy.load can be switched on only at the start; `observe` changes no decision")

    def order(self, decision: Decision, features: RequestFeatures, size_bytes: int, *, count: bool = True) -> None:
        """Returns None: the order stays that of the policy."""

    def figures(self, decision: Decision, features: RequestFeatures, size_bytes: int) -> Sequence[dict[str, Any]]:
        """Returns nothing: no candidate is worth more than another."""
        return ()

    def begin(self, decision: Decision, features: RequestFeatures, candidate: Candidate, size_bytes: int) -> NullSent:
        """Returns a request that is not counted."""
        return _NULL_SENT

    def view(self) -> list[dict[str, Any]]:
        """Returns nothing."""
        return []

    def set_engines(self, key: PoolKey, engines: int) -> None:
        """Does nothing."""

    def report(self) -> LoadReport:
        """Returns nothing for the other replicas."""
        return LoadReport()

    def merge(self, others: LoadReport | None) -> None:
        """Does nothing."""

    def check(self) -> None:
        """Does nothing."""


NULL_LOAD = NullLoad()
AnyLoad = NullLoad | LiveLoad
AnySent = NullSent | Sent
