"""Run an experiment on a cluster of two nodes, one of which is killed: EXPERIMENT RESULTS."""

import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from lametta.bench.experiment import load
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace

if __name__ == "__main__":
    experiment, folder = sys.argv[1], Path(sys.argv[2])
    # A node that is gone is noticed within two seconds instead of twenty.
    health = {"health_check_period_ms": 200, "health_check_failure_threshold": 10}
    settings = {**health, "worker_niceness": 0}  # or it gives way to all else that runs
    arguments = {"num_cpus": 1, "include_dashboard": False, "_system_config": settings}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    ray.init(address=cluster.address, log_to_driver=False)
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    running = True

    def kill():
        while len(list((folder / "cells").glob("*.parquet"))) < 5:
            time.sleep(0.01)
        assert running
        cluster.remove_node(node, allow_graceful=False)
        sys.stdout.write("killed")

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    failed = run(Workspace(load(experiment), folder), ray=cluster.address)
    running = False
    assert failed == []
    killer.join()
    ray.shutdown()
    cluster.shutdown()
