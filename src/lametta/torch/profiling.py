"""Timing and peak memory of a step, on CPU and CUDA."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Seconds:
    """The time between pairs of events; ``float`` of it waits until the device has passed them."""

    def __init__(self) -> None:
        self.spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __float__(self) -> float:
        for _, end in self.spans:
            end.synchronize()
        milliseconds: float = sum(start.elapsed_time(end) for start, end in self.spans)
        return milliseconds / 1e3

    def __repr__(self) -> str:
        return f"{float(self):.6f}"


class StepTimer:
    """Seconds of each stage on the device, and the peak memory since the timer was made.

    On CUDA, events are put into the device's own queue, so that the host waits for the device only
    when a time is read. Peak memory is that of all tensors on CUDA, and that of the whole process
    on a CPU, which only Linux tells.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, Any] = {}
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_peak_rss()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a ``with`` block to that of the stage."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            yield
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        yield
        end.record()
        self.seconds.setdefault(name, Seconds()).spans.append((start, end))

    def info(self) -> dict[str, Any]:
        """Seconds by stage, and ``peak_memory`` in bytes where it is known."""
        if self.device.type == "cuda":
            # What max_memory_allocated reads, without the hundred other figures it puts in order.
            figures = torch.cuda.memory_stats_as_nested_dict(self.device)
            return self.seconds | {"peak_memory": figures["allocated_bytes"]["all"]["peak"]}
        peak = _resident("VmHWM")
        return self.seconds if peak is None else self.seconds | {"peak_memory": peak}


def peak_memory_of(work: Callable[[], object]) -> int | None:
    """Do some work, and give the most bytes that this process had above what it had before.

    Memory that the process was given earlier and has free counts as its own, so that only a fresh
    process tells the truth. None where the system does not tell: only Linux does.
    """
    before = _resident("VmRSS")
    was_reset = _reset_peak_rss()
    work()
    peak = _resident("VmHWM")
    return None if before is None or peak is None or not was_reset else max(0, peak - before)


_PROCESS = Path("/proc/self")


def _reset_peak_rss() -> bool:
    """Make the peak what is in use now, and say whether that went well."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:  # not Linux, or forbidden: then the peak is that of the past
        return False
    return True


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", (_PROCESS / "status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
