"""A Ray cluster on this machine, which also corrects a dataset: FOLDER.

Its address goes to ``FOLDER/address``. The rows of ``FOLDER/rows.npz`` come back as
``FOLDER/corrected.npz``, and what was wrong where it should be as ``FOLDER/errors.json``. It runs
until SIGTERM.
"""

import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import ray

import lametta.ray
from lametta import correctors


def write(path, text):
    """Write a file that others wait for."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def correct_dataset(folder):
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.default_hash_shuffle_parallelism = 2  # a process each
    rows = dict(np.load(folder / "rows.npz"))
    dataset = ray.data.from_items(
        [{name: values[i] for name, values in rows.items()} for i in range(len(rows["time"]))],
        override_num_blocks=3,
    )
    touched = folder / "touched"

    def touch(batch):
        touched.touch()
        return batch

    lazy = lametta.ray.correct(dataset.map_batches(touch))
    errors = {"lazy": str(touched.exists())}
    corrected = {"prudent": lazy}
    options = {"corrector": correctors.LAME(), "logits": "logits", "batch_size": 16}
    corrected["lame"] = lametta.ray.correct(dataset, **options)
    arrays = {}
    for name, result in corrected.items():
        taken = result.take_all()
        arrays |= {f"{name}/{column}": [row[column] for row in taken] for column in taken[0]}
    np.savez(folder / "corrected.npz", **arrays)
    wrong = {
        "schema": lambda: lametta.ray.correct(dataset, features="feature"),
        "task": lambda: lametta.ray.correct(dataset.map_batches(touch), order="label").take_all(),
    }
    for name, call in wrong.items():
        try:
            call()
        except Exception as error:
            errors[name] = f"{isinstance(error, lametta.LamettaError)} {error}"
    write(folder / "errors.json", json.dumps(errors))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    # Workers give way to nothing else, since they poll while they wait; one starts at a time, and
    # stays for what comes next.
    workers = {"worker_niceness": 0, "worker_maximum_startup_concurrency": 1}
    settings = {**workers, "idle_worker_killing_time_threshold_ms": 60_000}
    options = {"include_dashboard": False, "log_to_driver": False, "_system_config": settings}
    ray.init(address="local", num_cpus=3, **options)
    write(folder / "address", ray.get_runtime_context().gcs_address)
    if find_spec("pandas") and find_spec("pyarrow"):
        correct_dataset(folder)
    signal.sigwait({signal.SIGTERM})
    ray.shutdown()
