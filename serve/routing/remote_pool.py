"""A pool of URLs: nobody hands out slots there, so the gateway counts its own requests."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from serve.errors import PoolUnavailableError
from serve.routing.fair_queue import ANONYMOUS, Asker, QueueReport, Turn
from serve.routing.outages import Outages
from serve.routing.pool import HEAD_START_S, NO_AFFINITY, Affinity, Endpoint, Hold, Occupancy, PoolReport
from serve.routing.prefix_placement import PlacedHold, PrefixPlacement
from serve.routing.waiting_room import WaitingRoom, WaitingTerms


@dataclass(slots=True, eq=False)
class _Address:
    """One URL.

    Attributes:
        endpoint: The URL, with the key of this moment.
        last: The number of the last request that went there, among all of the pool.
        usable: It is what the pool's facts say, and answers.
        kept_tokens: Of prompts, in its cache; None if unknown.
    """

    endpoint: Endpoint
    held: int = 0
    last: int = 0
    usable: bool = True
    kept_tokens: int | None = None


class RemotePool:
    """A pool of URLs, each of which is a replica; whoever runs them balances what is behind one URL. There may be none
    yet. Each address has so many slots, of which every gateway replica has an equal share. `key` returns the key that
    engines want now; without it, those of the endpoints never change.

    Attributes:
        on_silence: Called with the URL of an address that did not answer a request.
        silent: Addresses at which nobody listened when they were looked at. Requests find out when that has changed.
    """

    def __init__(
        self,
        endpoints: Endpoint | Sequence[Endpoint],
        facts: Mapping[str, Any],
        slots: int = 256,
        terms: WaitingTerms | None = None,
        label: str = "the pool",
        gateways: int = 1,
        key: Callable[[], str] | None = None,
        routing: str = "balanced",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        each = (endpoints,) if isinstance(endpoints, Endpoint) else endpoints
        self._addresses = {endpoint.url: _Address(endpoint) for endpoint in each}
        self._usable = list(self._addresses.values())
        self._outages = Outages(clock)
        self._taken = 0
        self.on_silence: Callable[[str], object] = lambda _: None
        self.silent: Collection[str] = ()
        self._key = key
        self._facts = facts
        self._slots = slots
        self._share = max(1, slots // gateways)
        self._label = label
        self._terms = terms or WaitingTerms(512)
        self._room = WaitingRoom[_Address](self._terms, label, self.give_back, self._capacity)
        self._is_sticky = routing == "sticky"
        self._placement = (
            PrefixPlacement(self._rooms, self._kept_tokens, lambda: self._addresses) if routing == "prefix" else None
        )

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """All addresses, with the key of this moment."""
        return tuple(self.endpoint_of(address) for address in self._addresses.values())

    @property
    def ready(self) -> bool:
        return self._free(self._present()) is not None

    @property
    def full(self) -> bool:
        present = self._present()
        return bool(present) and self._free(present) is None

    @property
    def head_start_s(self) -> float:
        return HEAD_START_S

    @property
    def replicas(self) -> int:
        return len(self._present()) if len(self._addresses) > 1 else 0

    def report(self) -> PoolReport:
        queue = QueueReport(self._room.queue.report().given)  # its slots are its own
        placement = self._placement
        return PoolReport(queue, placement.report(), placement.doing()) if placement else PoolReport(queue)

    def merge(self, others: PoolReport) -> None:
        self._room.queue.merge(others.queue)
        if self._placement is not None:
            self._placement.merge(others.sent, others.doing)
        self._hand_out()

    def keep(self, urls: Collection[str]) -> None:
        """Takes other addresses; a new one is not used until `use` names it."""
        key = next((address.endpoint.key for address in self._addresses.values()), None)
        self._addresses = {
            url: self._addresses.get(url) or _Address(Endpoint(url, key), usable=False) for url in sorted(urls)
        }
        self._usable = [address for address in self._addresses.values() if address.usable]

    def use(self, urls: Collection[str], facts: Mapping[str, Any]) -> None:
        """Takes what was found out about the addresses.

        Without any, requests fail until there is one again. `facts` hold for all of them.
        """
        for url, address in self._addresses.items():
            address.usable = url in urls
        self._usable = [address for address in self._addresses.values() if address.usable]
        self._facts = facts
        self._hand_out()

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        if self._placement is not None:
            blocks = affinity.blocks()
            url = self._placement.choose(blocks, affinity.avoid)
            return PlacedHold(_Hold(self, asker, url, affinity.avoid), self._placement, blocks)
        return _Hold(self, asker, self._of_session(affinity) if self._is_sticky else "", affinity.avoid)

    async def take(self, asker: Asker, wanted: str = "", avoid: frozenset[str] = frozenset()) -> tuple[_Address, Turn]:
        """Takes a slot, to be given back.

        `wanted` is the URL that is best for the request, or empty for any; those to `avoid` are worst.

        Raises:
            GatewayError: The wait for it was refused or timed out, or no address may be used.
        """
        present = self._present()
        if not present:
            message = f"No engine of {self._label} can be used now; try again shortly."
            raise PoolUnavailableError(message, retry_after_s=self._terms.retry_after_s)
        address = self._free(_without(present, avoid) if avoid else present, wanted)
        if address is None or not self._room.queue.may_have(asker):
            place = self._room.enter(asker)
            self._hand_out()
            return await self._room.wait(place)
        address.held += 1
        self._taken += 1
        address.last = self._taken
        return address, self._room.queue.charge(asker)

    def give_back(self, address: _Address) -> None:
        """Frees a slot, or leaves it to a request that waits."""
        address.held -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while len(self._room.queue):
            address = self._free(self._present())
            if address is None:
                return
            address.held += 1
            if not self._room.hand_out(address):
                address.held -= 1
                return

    def forget(self, endpoint: Endpoint) -> None:
        """Prefers other addresses to one that did not answer, for a while."""
        self.on_silence(endpoint.url)
        self._outages.add(endpoint.url)

    def restarted(self, url: str) -> None:
        """Takes note that the engine at an address is a new process: what the one before had in its cache is gone."""
        if self._placement is not None:
            self._placement.restarted(url)

    def keeps(self, url: str, tokens: int | None) -> None:
        """Takes note how many tokens of prompts the engine at an address keeps; None if it does not tell."""
        if address := self._addresses.get(url):
            address.kept_tokens = tokens

    def occupancy(self) -> Occupancy:
        held = sum(address.held for address in self._addresses.values())
        slots = self._slots * len(self._addresses)
        return Occupancy(slots, held, self._room.queue.counts(), self.addresses)

    async def facts(self) -> Mapping[str, Any]:
        if all(address.endpoint.url in self.silent for address in self._usable):
            raise PoolUnavailableError(f"No engine of {self._label} answers.")
        return self._facts

    async def close(self) -> None:
        """Does nothing: no slot is held."""

    def endpoint_of(self, address: _Address) -> Endpoint:
        """Returns an address, with the key of this moment."""
        if self._key is not None and (key := self._key()) != address.endpoint.key:
            address.endpoint = replace(address.endpoint, key=key)
        return address.endpoint

    def _present(self) -> list[_Address]:
        """Returns the addresses that may be used, without those that did not answer lately unless all did not."""
        out = self._outages.now()
        return _without(self._usable, out) if out else self._usable

    def _free(self, present: Sequence[_Address], wanted: str = "") -> _Address | None:
        """Returns the address that the next request gets: the one that is wanted, or the one with the fewest requests.

        Of equal ones it is the one that is longest without a new request.
        """
        if len(present) == 1:
            return present[0] if present[0].held < self._share else None
        free = [address for address in present if address.held < self._share]
        if not free:
            return None
        return next((each for each in free if each.endpoint.url == wanted), None) or min(
            free, key=lambda each: (each.held, each.last)
        )

    def _of_session(self, affinity: Affinity) -> str:
        """Returns the URL where a session's turns go: what it is for one, no other's coming or going changes."""
        present = _without(self._present(), affinity.avoid)
        if len(present) < 2:
            return ""
        session = affinity.session()
        return max((address.endpoint.url for address in present), key=lambda url: _place(session, url))

    def _rooms(self) -> Mapping[str, int]:
        return {address.endpoint.url: self._share for address in self._present()}

    def _kept_tokens(self, url: str) -> int | None:
        address = self._addresses.get(url)  # a hold's may be gone
        return address.kept_tokens if address else None

    def _capacity(self) -> int:
        return self._share * max(1, len(self._present()))


def _without(present: list[_Address], avoid: frozenset[str]) -> list[_Address]:
    return [address for address in present if address.endpoint.url not in avoid] or present


def _place(session: str, url: str) -> bytes:
    return blake2b(f"{session} {url}".encode(), digest_size=8).digest()


class _Hold(Hold):
    def __init__(self, pool: RemotePool, asker: Asker, wanted: str, avoid: frozenset[str]) -> None:
        self._pool = pool
        self._asker = asker
        self._wanted = wanted
        self._avoid = avoid

    async def __aenter__(self) -> Endpoint:
        self._address, self.turn = await self._pool.take(self._asker, self._wanted, self._avoid)
        return self._pool.endpoint_of(self._address)

    async def __aexit__(self, *_: object) -> None:
        self.turn.end()
        self._pool.give_back(self._address)
