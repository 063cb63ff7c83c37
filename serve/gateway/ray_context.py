"""What Ray Serve tells a gateway replica of itself; outside Ray, as in tests, it is the only one."""

from ray import serve as ray_serve
from ray.serve.exceptions import RayServeException


def application() -> str | None:
    """Returns the name of the Serve application; None outside Ray."""
    try:
        return str(ray_serve.get_replica_context().app_name)
    except RayServeException:
        return None


def gateway_replicas() -> int:
    """Returns how many gateway replicas there were when this one started."""
    try:
        return max(1, int(ray_serve.get_replica_context().world_size))
    except RayServeException:
        return 1


def replica_name() -> str:
    """Returns this replica's name, which no other has.

    Raises:
        RayServeException: It does not run in Ray.
    """
    return str(ray_serve.get_replica_context().replica_id.unique_id)
