"""Where cells run: processes of this machine, or a Ray cluster, both through joblib."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TypeAlias

from joblib import parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from lametta._checks import extra, import_optional

Pool: TypeAlias = Callable[[], AbstractContextManager[type[Exception]]]
"""Opens a context for ``joblib.Parallel``, and gives the error that a dead worker raises."""

_PATIENCE = 15.0  # seconds that a node has to answer


def local(jobs: int) -> Pool:
    """As many processes on this machine as there are jobs; with one job, this process itself."""

    @contextmanager
    def pool() -> Iterator[type[Exception]]:
        with parallel_config(backend="loky" if jobs > 1 else "sequential", n_jobs=jobs):
            yield TerminatedWorkerError

    return pool


def cluster(address: str) -> Pool:
    """All processors of a Ray cluster, but for nodes that have died."""
    ray = import_optional("ray", extra("ray"), "--ray")
    backend = import_optional("ray.util.joblib", extra("ray"), "--ray")

    @contextmanager
    def pool() -> Iterator[type[Exception]]:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        backend.register_ray()
        options = {"num_cpus": 1}
        with parallel_config(backend="ray", n_jobs=_processors(ray), ray_remote_args=options):
            yield ray.exceptions.RayError

    return pool


def _processors(ray: ModuleType) -> int:
    """Count the processors of nodes that answer: Ray takes a while to notice that one is gone."""
    strategies = import_optional("ray.util.scheduling_strategies", extra("ray"), "--ray")
    on_node = strategies.NodeAffinitySchedulingStrategy
    ping = ray.remote(num_cpus=0, max_retries=0)(lambda: None)
    asked = {
        ping.options(scheduling_strategy=on_node(node["NodeID"], soft=False)).remote(): node
        for node in ray.nodes()
        if node["Alive"]
    }
    answers, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE)
    total = 0
    for answer in answers:
        try:
            ray.get(answer)
        except ray.exceptions.RayError:
            continue
        total += int(asked[answer]["Resources"].get("CPU", 0))
    return max(1, total)
