"""Where gateway replicas leave their figures of the load for each other: the pattern of quarantine's detector."""

import logging
import time
import uuid
from collections.abc import Callable

from serve.errors import SharedStateError
from serve.load.live_load import LiveLoad
from serve.load.report import LoadReport, total
from serve.shared_actor import SharedActor

log = logging.getLogger("ray.serve.specgate.load")

_VERSION = 1
_FRESH_S = 5.0  # a replica that has not reported for so long is gone, and its requests with it


class LoadBoard:
    """The last report of each gateway replica. Runs as a Ray actor; without Ray, a plain object does as well.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, LoadReport]] = {}

    def sync(self, replica: str, report: LoadReport) -> LoadReport:
        """Keeps a replica's report; returns the figures of all others together."""
        now_s = self._clock()
        self._reports[replica] = (now_s, report)
        self._reports = {name: entry for name, entry in self._reports.items() if now_s - entry[0] < _FRESH_S}
        return total(report for name, (_, report) in self._reports.items() if name != replica)


class SharedLoad:
    """One gateway replica's side of the board.

    Args:
        load: Reports, and hears of the others.
        application: Name of the Serve application; None outside Ray, where this replica is the only one.
    """

    def __init__(self, load: LiveLoad, application: str | None) -> None:
        self._load = load
        self._replica = uuid.uuid4().hex
        self._actor = SharedActor(f"{application}-load-v{_VERSION}", LoadBoard) if application else None
        self._reached = True

    async def sync(self) -> None:
        """Exchanges figures; while the board can't be reached, this replica goes by its share of all requests."""
        if self._actor is None:
            return
        try:
            self._load.hear(await self._actor.call("sync", self._replica, self._load.report()))
            self._reached = True
        except SharedStateError as error:
            self._load.hear(None)
            if self._reached:
                log.warning("other gateway replicas' load is unknown: %s", error.message)
            self._reached = False
