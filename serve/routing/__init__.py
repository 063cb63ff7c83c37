"""From a pool to one of its replicas."""
