import tempfile
from pathlib import Path

import pytest
from tests.runtime.raycluster import Cluster


@pytest.fixture
def cluster(session_cluster):
    """The shared cluster; a driver that a failing test left behind is ended."""
    yield session_cluster
    for driver in session_cluster.drivers:
        driver.kill()
        driver.communicate()
    session_cluster.drivers.clear()


@pytest.fixture(scope="session")
def session_cluster():
    """Head, one v6e 2x4 slice on two 4-chip hosts (8 ranks), one v7x 1x1x1 host (2 ranks)."""
    with tempfile.TemporaryDirectory(
        prefix="ttj", ignore_cleanup_errors=True
    ) as folder:  # short: Unix sockets below it
        cluster = Cluster(Path(folder))
        try:
            cluster.start_head()
            cluster.add_slice(1, "v6e", "2x4", 4)
            cluster.add_slice(2, "v7x", "1x1x1")
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.stop()
