"""A gateway replica's place in Ray Serve; outside Ray it is the only one."""

import sys
from typing import Any

from serve.shared.link import Link, LocalLink

ONLY = "local"
"""The name of the only replica of a gateway without Ray."""


def application() -> str | None:
    """Returns the name of the Serve application; None outside Ray."""
    context = _context()
    return None if context is None else str(context.app_name)


def gateway_replicas() -> int:
    """Returns how many gateway replicas there were when this one started."""
    context = _context()
    return 1 if context is None else max(1, int(context.world_size))


def replica_name() -> str:
    """Returns this replica's name, which no other has."""
    context = _context()
    return ONLY if context is None else str(context.replica_id.unique_id)


def link_to(admin_api: Any) -> Link | None:
    """Returns the link to the admin API.

    In place of Ray Serve's handle there may be a link within this process, or None if there is no admin API.
    """
    if admin_api is None or isinstance(admin_api, LocalLink):
        return admin_api
    from serve.shared.ray_link import HandleLink

    return HandleLink(admin_api)


def _context() -> Any:
    """Returns the context of this replica; None outside Ray, which is not even imported then."""
    if "ray.serve" not in sys.modules:
        return None
    from ray import serve as ray_serve
    from ray.serve.exceptions import RayServeException

    try:
        return ray_serve.get_replica_context()
    except RayServeException:
        return None
