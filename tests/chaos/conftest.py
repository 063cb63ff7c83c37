"""One cluster for all tests of loss and change: a head node and a worker, simulated engines, two gateway replicas."""

from collections.abc import Iterator

import psutil
import pytest
from support.cluster import Cluster, running
from support.pools import CONFIG


@pytest.fixture(scope="package")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def worker(bare_cluster: Cluster) -> psutil.Process:
    """The second node."""
    return bare_cluster.add_worker()


@pytest.fixture(scope="package")
async def cluster(bare_cluster: Cluster, worker: psutil.Process) -> Cluster:
    await bare_cluster.deploy(CONFIG)
    return bare_cluster
