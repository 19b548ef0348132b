"""Array libraries, the oracle and stored data for all tests."""

import atexit
import gc
import importlib.metadata
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from lametta import registry
from lametta._files import file_lock

# Programs that tests start; each would be imported in the search for doctests, and Ray with it.
collect_ignore = [
    "bench/running/ray_cluster.py",
    "data/bank/kill_extraction.py",
    "serve/ray_cluster.py",
]

# A machine with a GPU may have PyTorch and pytest alone, for the tests of these.
with suppress(ImportError):
    from hypothesis import settings

    # Timing is for benchmarks; these machines are too noisy for deadlines.
    settings.register_profile("lametta", deadline=None, derandomize=True)
    settings.register_profile("quick", settings.get_profile("lametta"), max_examples=20)
    settings.load_profile("lametta")

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
    "redis-server": ("redis-server",),
    "nginx-light": ("nginx",),
}
"""What tests run, by the packages of Debian that bring it."""
DEBIAN = (*PROGRAMS, "wordnet-base")
WHEELS = ("megadetector-utils", "timm")
"""Packages of Python that are too large for the extra `dev`."""
SHARED = Path(os.environ.get("LAMETTA_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Add names to a group of entry points, as packages that are installed would."""
    points: list[importlib.metadata.EntryPoint] = []

    def add(group: str, **targets: str) -> None:
        points.extend(importlib.metadata.EntryPoint(n, t, group) for n, t in targets.items())
        registry.entry_points.cache_clear()

    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group]
    )
    yield add
    registry.entry_points.cache_clear()


@dataclass(frozen=True)
class Library:
    """An array library as the tests use it."""

    name: str
    namespace: Any
    asarray: Callable[[Any, Any], Any]
    halves: tuple[str, ...] = ()

    def array(self, values: Any, dtype: str = "float64") -> Any:
        return self.asarray(np.asarray(values), getattr(self.namespace, dtype))

    def numpy(self, array: Any) -> Any:
        if self.name == "torch":
            return array.detach().double().numpy()
        return np.asarray(array, dtype=np.float64)


def _read_only(values: Any, dtype: Any) -> Any:
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


@cache
def _libraries() -> dict[str, Library]:
    import array_api_strict
    import jax
    import torch

    halves = ("float16", "bfloat16")
    found = (
        Library("numpy", np, lambda v, dtype: np.array(v, dtype=dtype), halves[:1]),
        Library("read-only", np, _read_only, halves[:1]),
        Library("torch", torch, lambda v, t: torch.tensor(v).to(t), halves),
        Library("jax", jax.numpy, lambda v, t: jax.numpy.asarray(v, dtype=t), halves),
        Library("strict", array_api_strict, lambda v, t: array_api_strict.asarray(v, dtype=t)),
    )
    return {library.name: library for library in found}


_JAX = pytest.param("jax", marks=pytest.mark.slow)  # it compiles for every shape


@pytest.fixture(params=["numpy", "read-only", "torch", _JAX, "strict"])
def library(request: pytest.FixtureRequest) -> Library:
    return _libraries()[request.param]


def pytest_configure(config: pytest.Config) -> None:
    """Set up the libraries, except in a process that only hands tests out to workers."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        return
    gc.disable()  # until all is loaded, which makes objects by the million and hardly any garbage
    import torch

    torch.set_num_threads(1)  # on a busy machine threads wait for each other
    if not torch.cuda.is_available():  # before anything imports Triton
        os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ImportError):
        _set_up_typer()
    with suppress(ImportError):
        _set_up_jax(config)


def _set_up_typer() -> None:
    import typer.testing

    if hasattr(typer.testing, "_get_command"):  # or each call makes our command, in 12 ms
        typer.testing._get_command = cache(typer.testing._get_command)


def _set_up_jax(config: pytest.Config) -> None:
    import jax

    jax.config.update("jax_enable_x64", True)
    # One MLIR context for all: JAX spends half of its time on a new one for each operation.
    from jax._src.interpreters import mlir

    if hasattr(mlir, "make_ir_context"):
        mlir.make_ir_context = cache(mlir.make_ir_context)
    if hasattr(config, "cache"):  # JAX mostly compiles: keep that for the next run
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker whether tests are compiled already, as they are after their first run."""
    compiled = Path(__file__).parent.glob("*/__pycache__/*.pyc")
    node.workerinput["compiled"] = next(compiled, None) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let workers that would all compile the tests come one by one: the first does it for all."""
    about = getattr(session.config, "workerinput", {"compiled": True})
    if about["compiled"]:
        return (yield)
    with file_lock(Path(tempfile.gettempdir(), f"lametta-{about['testrunuid']}.lock")):
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers start with the longest tests, so that none waits for such a one at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=_seconds, reverse=True)


def pytest_collection_finish() -> None:
    """Search for garbage rarely, and not in what is loaded by now, a million objects."""
    if "hypothesis" in sys.modules:
        # At its first example it registers a generator, and warns if nobody refers to that. From
        # Python 3.14 on this is what it sees of those that are frozen.
        from hypothesis import given, strategies

        given(strategies.none())(lambda _: None)()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let a worker end at once: to take its objects apart, one by one, takes many seconds."""
    if hasattr(config, "workerinput"):
        atexit.register(_end)


def _end() -> None:
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    os._exit(0)


def _seconds(item: pytest.Item) -> float:
    """About how long a test takes, by its mark."""
    slow = item.get_closest_marker("slow")
    return 0 if slow is None else next(iter(slow.args), 0.25)


@pytest.fixture(autouse=True)
def _seed() -> None:
    import torch

    torch.default_generator.manual_seed(0)  # not devices: each would record a stack trace


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What lametta logs."""
    logger, text = logging.getLogger("lametta"), io.StringIO()
    handler = logging.StreamHandler(text)
    logger.addHandler(handler)
    yield text
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``made_once(name, make)``: a folder for all processes that run tests, made by the first."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def get(name: str, make: Callable[[Path], object]) -> Path:
        with file_lock(place / f"{name}.lock"):
            if not (place / f"{name}.done").exists():
                (place / name).mkdir()
                make(place / name)
                (place / f"{name}.done").touch()
        return place / name

    return get


def shared(*parts: str) -> Path:
    """A file that is too large for the repository, or skip the test."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not in {SHARED}; set LAMETTA_SHARED to where it is")
    return path


@pytest.fixture(scope="session")  # so that it comes before other fixtures
def browser() -> str:
    """Where Chromium is, or skip the test."""
    return installed("chromium")


def installed(package: str) -> str:
    """Where a package of Debian has put its program, or skip the test."""
    found = next(filter(None, map(shutil.which, PROGRAMS[package])), None)
    return found or skip_for_want_of(package)


def skip_for_want_of(package: str) -> NoReturn:
    """Skip the test; the last line of all says what to install."""
    pytest.skip(f"{package} is not installed")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # behind the list of what was skipped
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Say in one line what to install, so that nothing is skipped for want of it."""
    yield
    skipped = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    lacking = {name: skipped[f"Skipped: {name} is not installed"] for name in (*DEBIAN, *WHEELS)}
    tools = {"apt-get": DEBIAN, "pip": WHEELS}
    wanted = {tool: [x for x in brings if lacking[x]] for tool, brings in tools.items()}
    if names := [name for found in wanted.values() for name in found]:
        how = "; ".join(f"{tool} install {' '.join(x)}" for tool, x in wanted.items() if x)
        count = sum(lacking.values())
        terminalreporter.write_line(f"{count} skipped for want of {', '.join(names)}: {how}")


def run_python(code: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run code in a process of its own and keep what it prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def make_batch(n: int, n_classes: int, d: int = 16, seed: int = 0, scale: float = 2.0) -> Any:
    """Features [n, d] and probabilities [n, n_classes] of overlapping classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(min(n_classes, 6), size=n)
    features = rng.normal(size=(6, d))[labels] + 0.7 * rng.normal(size=(n, d))
    logits = scale * np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes))
    return features, softmax(logits)


def knn_matrix(features: Any, k: int) -> Any:
    """The k nearest neighbors by definition: every distance, then a sort."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    x = np.divide(features, norms, out=np.zeros_like(features), where=norms > 0)
    w = np.zeros((len(x), len(x)))
    for i, row in enumerate(x):
        distances = np.linalg.norm(x - row, axis=1)
        others = [j for j in np.argsort(distances, kind="stable") if j != i]
        w[i, others[:k]] = 1
    return w


def lame_by_definition(q: Any, w: Any, n_iter: int) -> Any:
    """Equation 5 of the paper, as it stands there, for so many updates or until z rests."""
    z = q
    for i in range(n_iter):
        before, z = z, q * np.exp(w @ z)
        z = z / z.sum(axis=1, keepdims=True)
        if i % 16 == 15 and np.abs(z - before).max() <= np.finfo(np.float64).eps:
            break
    return z


def energy_by_definition(z: Any, q: Any, w: Any) -> float:
    """Sum of KL(z_i || q_i) less half the Laplacian term."""
    inside = z > 0
    kl = (z[inside] * np.log(z[inside] / q[inside])).sum()
    return kl - 0.5 * (w * (z @ z.T)).sum()
