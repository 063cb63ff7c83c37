"""The replicas that run, as Ray Serve's request routers in this process know them: nobody is asked, no slot is taken.

A module of its own, because Ray copies the module of a request router into every process that uses one.
"""

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

_routers: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()


def register(app: str, deployment: str, router: Any) -> None:
    """Remembers the request router of a deployment for as long as it is in use."""
    _routers[app, deployment] = router


def metadata_of_running(app: str, deployment: str) -> list[Mapping[str, Any]]:
    """Returns what each running replica of a deployment said about itself when it became ready.

    The list is empty as well if the deployment has no request router in this process.
    """
    router = _routers.get((app, deployment))
    return [] if router is None else [replica.replica_metadata for replica in list(router.curr_replicas.values())]
