"""How `lame.py` measures time and memory on a CPU and on a GPU."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

import peak
from peak import VERSIONS

Call = Callable[[], Any]
Calls = dict[str, Callable[..., Any]]


class Cpu:
    """Wall-clock time of PyTorch and NumPy; memory in a process of its own."""

    features, many_features = 1280, 512
    dtype = torch.float32
    libraries = ("torch", "numpy")
    convert: ClassVar[Calls] = {"torch": torch.from_numpy, "numpy": np.asarray}

    def __init__(self, seconds: float) -> None:
        self.name = f"{os.cpu_count()} CPU cores"
        self.budget = seconds

    def side_by_side(self, calls: dict[str, Call]) -> dict[str, float]:
        """The least seconds of each call, in turns, since others may use the machine.

        The first call of a turn is not counted: threads that slept while the others ran wake up
        in it.
        """
        best = dict.fromkeys(calls, float("inf"))
        turns, end = 0, time.perf_counter() + self.budget
        while time.perf_counter() < end or turns < 2:
            turns += 1
            for name, call in calls.items():
                call()
                best[name] = min(best[name], *(self.once(call) for _ in range(2)))
        return best

    def seconds(self, call: Call) -> float:
        """Median over calls."""
        call()
        times: list[float] = []
        end = time.perf_counter() + self.budget / 4
        while time.perf_counter() < end or len(times) < 3:
            times.append(self.once(call))
        return statistics.median(times)

    def once(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def peak(self, version: str, library: str, features: Any, probs: Any) -> float:
        """MiB that a call on arrays of these shapes adds to a fresh process."""
        sizes = map(str, (*features.shape, probs.shape[1]))
        command = [sys.executable, peak.__file__, version, library, *sizes]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Gpu:
    """The device's own time, by CUDA events.

    Ours is replayed from a CUDA graph, as in a server: a call from Python takes longer on the host
    than on the device, which hides behind a network.
    """

    features = many_features = 2048
    dtype = torch.bfloat16
    libraries = ("torch",)
    convert: ClassVar[Calls] = {"torch": partial(torch.asarray, device="cuda")}

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name()

    def side_by_side(self, calls: dict[str, Call]) -> dict[str, float]:
        """Median seconds of each, ours from a CUDA graph; the others wait for the host."""
        return {
            name: self.seconds(call) if name == "lametta" else self._by_events(call, 10)
            for name, call in calls.items()
        }

    def seconds(self, call: Call) -> float:
        """Median over replays of a CUDA graph."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return self._by_events(graph.replay, 50)

    def _by_events(self, call: Call, calls: int) -> float:
        times = []
        for _ in range(calls + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return float(statistics.median(times[3:]))

    def once(self, call: Call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def on_host(self, call: Call, calls: int = 50) -> float:
        """Seconds that the host is busy with a call, the device left to itself."""
        self.once(call)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return seconds / calls

    def peak(self, version: str, library: str, features: Any, probs: Any) -> float:
        """MiB that a call needs beside its input."""
        call = partial(VERSIONS[version][library], features, probs)
        self.once(call)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.once(call)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
