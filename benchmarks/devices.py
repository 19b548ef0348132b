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
from literal import literal_numpy, literal_torch
from peak import ours

Call = Callable[[], Any]
Calls = dict[str, Callable[..., Any]]


class Cpu:
    """Wall-clock time of PyTorch and NumPy; memory in a process of its own."""

    features, many_features = 1280, 512
    dtype = torch.float32
    literal: ClassVar[Calls] = {"torch": literal_torch, "numpy": literal_numpy}
    convert: ClassVar[Calls] = {"torch": torch.from_numpy, "numpy": np.asarray}

    def __init__(self, seconds: float) -> None:
        self.name = f"{os.cpu_count()} CPU cores"
        self.budget = seconds

    def side_by_side(self, slow: Call, fast: Call) -> tuple[float, float]:
        """Median seconds of both, in turns: five calls of the fast one for each of the slow one.

        A call before each turn is not counted: threads that slept while the other ran wake up
        in it.
        """
        times: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + self.budget
        while time.perf_counter() < end or len(times[0]) < 3:
            slow()
            times[0].append(self.once(slow))
            fast()
            times[1].extend(self.once(fast) for _ in range(5))
        return statistics.median(times[0]), statistics.median(times[1])

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
    literal: ClassVar[Calls] = {"torch": literal_torch}
    convert: ClassVar[Calls] = {"torch": partial(torch.asarray, device="cuda")}

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name()

    def side_by_side(self, slow: Call, fast: Call) -> tuple[float, float]:
        return self._by_events(slow, 10), self.seconds(fast)

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
        call = partial(ours if version == "lametta" else self.literal[library], features, probs)
        self.once(call)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.once(call)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
