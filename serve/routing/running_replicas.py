"""The replicas that run, as Ray Serve's request routers in this process know them: nobody is asked, no slot is taken.

A module of its own, because Ray copies the module of a request router into every process that uses one.
"""

import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from serve.routing.endpoint import url_of

_routers: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()


def register(app: str, deployment: str, router: Any) -> None:
    """Remembers the request router of a deployment for as long as it is in use."""
    _routers[app, deployment] = router


def metadata_of_running(app: str, deployment: str) -> list[Mapping[str, Any]]:
    """Returns what each running replica of a deployment said about itself when it became ready.

    The list is empty as well if the deployment has no request router in this process.
    """
    return [replica.replica_metadata for replica in _running(app, deployment) or ()]


def slots_of_running(app: str, deployment: str) -> int:
    """Returns the requests that the running replicas of a deployment take at the same time.

    Without a request router in this process the number is unknown, and more than any deployment has.
    """
    running = _running(app, deployment)
    return sys.maxsize if running is None else sum(replica.max_ongoing_requests for replica in running)


def slots_by_url(app: str, deployment: str) -> dict[str, int]:
    """Returns the requests that each running replica of a deployment takes at the same time, by its URL."""
    running = _running(app, deployment) or ()
    return {url_of(replica.replica_metadata): replica.max_ongoing_requests for replica in running}


def _running(app: str, deployment: str) -> list[Any] | None:
    router = _routers.get((app, deployment))
    return None if router is None else list(router.curr_replicas.values())
