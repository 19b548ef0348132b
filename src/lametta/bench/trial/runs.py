"""Candidates of a trial: methods that see outputs alone, one by one and in batches, and their runs.

Labels are used for scores alone, after a method has answered.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import joblib
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from lametta import methods
from lametta._arrays import Floats, softmax
from lametta.bench.running.scores import StreamingMetrics
from lametta.correctors.base import give_prototypes
from lametta.correctors.chain import Chain
from lametta.data.bank.bank import Bank, check_finite
from lametta.stream._groups import factorize, group_index
from lametta.types import LamettaError, Prediction, Prototypes

Index = NDArray[np.intp]

SERIES = ("evidence", "novelty", "order", "trust")
"""What is kept of ``Prediction.info``, batch by batch."""

_FIRST = ("prudent", "lame", "windowed", "memory", "smoothing", "majority", "average")
_ADAPTS = "adapts the network itself"
_FAIR = 3.0  # seconds after which the pace of a run is judged
_PATIENCE = 0.1  # seconds of a call, up to which longer ones are made
_SMALL = 2e6  # numbers of outputs that one process is done with before others have started


@dataclass(frozen=True)
class Candidate:
    """A method by name, and how many samples it is given at a time.

    Attributes
    ----------
    method : str
        As in ``lametta list methods``.
    batch_size : int
        1 for one by one.
    causal : bool
        Whether its answers are the same one by one and in batches.

    Examples
    --------
    >>> Candidate("prudent", 64).title, Candidate("memory", 1, causal=True).title
    ('prudent, batches of 64', 'memory, one by one')
    """

    method: str
    batch_size: int
    causal: bool = False

    @property
    def title(self) -> str:
        """What tables call it."""
        way = "one by one" if self.batch_size == 1 else f"batches of {self.batch_size}"
        return f"{self.method}, {way}"


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a network said of a stream: features [N, d], probs [N, K], and what is known beside.

    Attributes
    ----------
    features, probs : array
        In the order of the stream.
    labels : array [N] or None
        Classes.
    groups : array [N] or None
        Videos or cameras: each is a stream of its own.
    prototypes : Prototypes or None
        Of the network's head.
    keys : tuple of str
        Names of samples, where they have any.
    classes : tuple of str
        Names of classes, where they have any.
    single : bool
        Whether each group is known to be one object, such as a tracked animal.
    """

    features: Floats
    probs: Floats
    labels: NDArray[np.integer] | None = None
    groups: NDArray[np.generic] | None = None
    prototypes: Prototypes | None = None
    keys: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    single: bool = False

    @classmethod
    def of(cls, bank: Bank, limit: int | None = None, *, single: bool = False) -> "Outputs":
        """The outputs of a bank, or of its first samples.

        Examples
        --------
        >>> Outputs.of(Bank(np.eye(3), np.zeros((3, 2))), limit=2).probs
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        rows = np.arange(len(bank) if limit is None else min(limit, len(bank)))
        output = bank(rows)
        check_finite("features", output.features)
        check_finite("logits", np.maximum(output.logits, np.finfo(np.float32).min))
        labels, names = bank.labels, tuple(bank.header.get("classes") or ())
        others = len(names) not in (0, bank.n_classes)  # classes than the network's, as videos are
        if labels is not None and (others or labels.max(initial=-1) >= bank.n_classes):
            labels = None
        return cls(
            output.features,
            softmax(np, output.logits),
            None if labels is None else labels[rows],
            None if bank.groups is None else bank.groups[rows],
            bank.prototypes,
            tuple(bank.keys[: len(rows)]),
            names if len(names) == bank.n_classes else (),
            single and bank.groups is not None,
        )

    def __len__(self) -> int:
        return len(self.probs)

    @cached_property
    def before(self) -> Index:
        """The network's own class of each sample [N]."""
        found: Index = self.probs.argmax(axis=1)
        return found

    @cached_property
    def streams(self) -> list[Index]:
        """The positions of each group, by first appearance; all of them where there are none."""
        if self.groups is None:
            return [np.arange(len(self))]
        order, begin, _ = group_index(factorize(self.groups)[0])
        return np.split(order, begin[1:])


@dataclass(frozen=True, eq=False)
class Run:
    """What became of a stream under one candidate.

    Attributes
    ----------
    candidate : Candidate
        What was run.
    after : array [N]
        The class of each sample after the correction.
    confidence, kept : array [N]
        The corrected probability of that class, and of the network's own.
    seconds : float
        What all corrections took.
    scores : mapping of str to float
        Accuracy, the worst group's, NLL and ECE; empty without labels.
    series : mapping of str to array
        What ``info`` said, batch by batch, of `SERIES`.
    """

    candidate: Candidate
    after: Index
    confidence: Floats
    kept: Floats
    seconds: float
    scores: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Floats] = field(default_factory=dict)


def candidates(
    outputs: Outputs, names: Iterable[str] | None = None, batch_size: int = 64
) -> tuple[list[Candidate], dict[str, str]]:
    """What can be tried on these outputs, the likeliest first; and what cannot, and why.

    Examples
    --------
    >>> outputs = Outputs(np.eye(4), np.full((4, 2), 0.5))
    >>> found, left = candidates(outputs, ["prudent", "lame", "t3a", "tent"])
    >>> [one.title for one in found]
    ['prudent, one by one', 'prudent, batches of 64', 'lame, batches of 64']
    >>> left
    {'t3a': 'needs prototypes, the weights of the head', 'tent': 'adapts the network itself'}
    """
    asked = [n for n in methods.names() if n != "source"] if names is None else list(names)
    found: list[Candidate] = []
    left: dict[str, str] = {}
    for name in asked:
        if methods.METHODS.where(name).startswith("lametta.torch:"):  # seconds to import
            left[name] = _ADAPTS
            continue
        try:
            method = methods.find(name)
            if reason := _unfit(method, outputs):
                left[name] = reason
                continue
            found += _ways(method, batch_size)
        except LamettaError as error:
            if names is not None:
                raise
            left[name] = str(error)  # a package's own, which does not load, or needs options
    rank = {name: i for i, name in enumerate(_FIRST)}
    return sorted(found, key=lambda one: rank.get(one.method, len(rank))), left


def _unfit(method: methods.Method, outputs: Outputs) -> str:
    if method.name == "source":
        return "changes nothing"
    if not all(part.is_corrector for part in method.components):
        return _ADAPTS
    if "prototypes" in method.needs and outputs.prototypes is None:
        return "needs prototypes, the weights of the head"
    method.correctors({})
    return ""


def _ways(method: methods.Method, batch_size: int) -> Iterator[Candidate]:
    causal = method.stateful and method.causal
    if method.stateful:
        yield Candidate(method.name, 1, causal)
    if not causal and batch_size > 1:
        yield Candidate(method.name, batch_size)


def run_all(
    outputs: Outputs, found: Sequence[Candidate], *, deadline: float, jobs: int | None, size: int
) -> Iterator[Run]:
    """Run candidates side by side, in order, and give what is done before the deadline.

    Parameters
    ----------
    outputs : Outputs
        What all of them see; labels are looked at for scores alone.
    found : sequence of Candidate
        Are begun in this order.
    deadline : float
        By `time.time`: what runs then is given up after the batch that it is at.
    jobs : int or None
        Processes; None takes one for small streams, and else one a core, eight at most.
    size : int
        The batch by which methods are run whose answers do not depend on it.
    """
    if jobs is None:
        is_small = outputs.features.size + outputs.probs.size < _SMALL
        jobs = 1 if is_small else min(joblib.cpu_count(), 8)
    work = [joblib.delayed(run_one)(outputs, one, deadline, size) for one in found]
    options = {} if jobs == 1 else {"inner_max_num_threads": 1}
    # One thread a process: the products are small, and threads would wait for each other.
    with threadpool_limits(1), joblib.parallel_config("loky", n_jobs=jobs, **options):
        done = joblib.Parallel(return_as="generator_unordered", pre_dispatch="n_jobs")(work)
        for run in done:
            if run is not None:
                yield run


def run_one(outputs: Outputs, one: Candidate, deadline: float, size: int = 64) -> Run | None:
    """Run one candidate over all streams, each from its beginning; None where time ran out.

    Examples
    --------
    >>> outputs = Outputs(np.eye(2), np.array([[0.9, 0.1], [0.4, 0.6]]), labels=np.array([0, 0]))
    >>> run = run_one(outputs, Candidate("average", 1), np.inf)
    >>> run.after, run.scores["accuracy"]
    (array([0, 0]), 1.0)
    """
    n, k = outputs.probs.shape
    before, after = outputs.before, np.empty(n, np.intp)
    confidence, kept = np.empty(n, np.float32), np.empty(n, np.float32)
    scored = None if outputs.labels is None else StreamingMetrics(k)
    series: dict[str, list[float]] = {}
    seconds, n_done, begun = 0.0, 0, time.time()
    for rows, prediction, took in _answered(outputs, one, size):
        probs = np.asarray(prediction.probs)
        check_finite(f"probs of {one.method}", probs, rows)
        after[rows] = probs.argmax(axis=1)
        confidence[rows] = probs.max(axis=1)
        kept[rows] = probs[np.arange(len(rows)), before[rows]]
        if scored is not None and outputs.labels is not None:
            scored.update(probs, outputs.labels[rows])
        for name in () if one.causal else SERIES:  # whose batches are cut as one likes
            if name in prediction.info:
                series.setdefault(name, []).append(float(prediction.info[name]))
        seconds, n_done = seconds + took, n_done + len(rows)
        if _is_late(time.time(), begun, n_done / n, deadline):
            return None
    return Run(
        one,
        after,
        confidence,
        kept,
        seconds,
        {} if scored is None else _scores(scored, outputs, after),
        {name: np.array(values, np.float32) for name, values in series.items()},
    )


def _answered(
    outputs: Outputs, one: Candidate, size: int
) -> Iterator[tuple[Index, Prediction, float]]:
    """The rows of each batch of each stream, what a candidate says of them, and in what time."""
    for stream in outputs.streams:
        chain = Chain(tuple(methods.find(one.method).correctors({})))
        give_prototypes(chain, outputs.prototypes, "the bank")
        begin, step = 0, one.batch_size
        while begin < len(stream):
            rows = stream[begin : begin + step]
            start = time.perf_counter()
            prediction = chain.correct(outputs.features[rows], outputs.probs[rows])
            took = time.perf_counter() - start
            yield rows, prediction, took
            begin += step
            if one.causal and took < _PATIENCE:  # however a stream is cut, the answers are the same
                step = min(2 * step, size)


def _is_late(now: float, begun: float, share: float, deadline: float) -> bool:
    """Whether a run is past the deadline, or will be at the pace that it has had for a while."""
    too_slow = now - begun > _FAIR and begun + (now - begun) / share > deadline
    return share < 1 and (now > deadline or too_slow)


def _scores(metrics: StreamingMetrics, outputs: Outputs, after: Index) -> dict[str, float]:
    found = metrics.compute()
    right = after == outputs.labels
    worst = min(float(right[rows].mean()) for rows in outputs.streams)
    return {name: found[name] for name in ("accuracy", "ece", "nll")} | {"worst_group": worst}
