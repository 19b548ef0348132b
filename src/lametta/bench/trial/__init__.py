"""Trial: every output-only method that fits on one stream, at once. Its results and its page.

`try_methods` runs them on a bank, `Trial.table` and `Trial.write` show what came out, and
`Trial.advice` says what to take, why and at what risk. ``lametta try`` is the same as a command.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lametta._checks import check_integer, check_number
from lametta._files import PathLike
from lametta._progress import bars
from lametta.bench.tables import Entry, Table, percent
from lametta.bench.trial import store
from lametta.bench.trial.advice import Advice, advise
from lametta.bench.trial.foresight import GAINED, foreseeing
from lametta.bench.trial.gains import LEAST_KINSHIP, Estimate, estimate
from lametta.bench.trial.labels import Draw, check, draw, measure
from lametta.bench.trial.page import Pictures
from lametta.bench.trial.page import write as write_page
from lametta.bench.trial.runs import Candidate, Index, Outputs, Run, candidates, run_all, run_one
from lametta.bench.trial.stream import SURE_COPY, Look, domains, look, scenes
from lametta.bench.trial.strips import along
from lametta.data.bank.bank import Bank
from lametta.data.classes.imagenet import IMAGENET, IMAGENET_NAMES
from lametta.types import LamettaError

__all__ = [
    "Advice",
    "Candidate",
    "Draw",
    "Estimate",
    "Look",
    "Outputs",
    "Run",
    "Trial",
    "try_methods",
]

_SHARE = 0.25  # of the budget that one method by itself may take
_PROBE, _TIMES = 64, 3  # samples by which the speed is judged, and how often: once may be slow
_GROUPS = 30  # that the table of groups shows
_OUT_OF_TIME = "out of time: run the same again to go on, or with a larger budget"
_TOO_MANY = "out of time: a larger budget takes more"

OnProgress = Callable[[int, int, str], object]
"""Called with the numbers of runs done and in all, and with what was just done."""


def try_methods(
    bank: Bank,
    names: Iterable[str] | None = None,
    *,
    batch_size: int = 64,
    budget: float = 60.0,
    jobs: int | None = None,
    single: bool = False,
    results: PathLike | None = None,
    progress: OnProgress | bool | None = None,
) -> "Trial":
    """Try every method that sees outputs alone on the outputs in a bank, and say which to take.

    Each group is a stream of its own. Labels, where the bank has some, are used for scores alone.

    Parameters
    ----------
    bank : Bank
        Features and logits in the order of the stream.
    names : iterable of str, optional
        The methods, as `lametta.methods` has them; all that fit by default.
    batch_size : int
        How many samples arrive together where methods run in batches; all that remember run one
        by one, too.
    budget : float
        Seconds after which no batch is begun; what was not done by then is named in
        `Trial.left`. Of a stream too long for it, the first samples are taken.
    jobs : int, optional
        Processes; by default one for a small stream, and else one a core.
    single : bool
        Whether each group is known to be one object, as a tracker's tracks are.
    results : path, optional
        A file that keeps what was run, so that the same call goes on from there.
    progress : callable or bool, optional
        Called after each run; True shows a bar on the error stream.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(4), 25)
    >>> features = np.eye(4)[labels] + 0.3 * rng.normal(size=(100, 4))
    >>> bank = Bank(features, 2 * np.eye(4)[labels] + rng.normal(size=(100, 4)), labels)
    >>> trial = try_methods(bank, ["lame", "prudent"], jobs=1)
    >>> [run.candidate.title for run in trial.runs]
    ['prudent, one by one', 'prudent, batches of 64', 'lame, batches of 64']
    """
    begun = time.time()
    check_integer("batch_size", batch_size, 1)
    check_number("budget", budget, above=0)
    if len(bank) == 0:
        raise LamettaError("bank must hold a sample, got none")
    outputs = Outputs.of(bank, _affordable(bank, budget), single=single)
    found, left = candidates(outputs, names, batch_size)
    file = None if results is None else Path(results)
    done = store.Done(file, store.fingerprint(outputs, batch_size))
    missing = [one for one in found if one not in done.runs]
    rest = run_all(outputs, missing, deadline=begun + budget, jobs=jobs, size=batch_size)
    with _told(progress) as report:
        for n, run in enumerate(rest if missing else (), len(found) - len(missing) + 1):
            done.add(run)
            report(n, len(found), run.candidate.title)
    left |= {one.title: _OUT_OF_TIME for one in found if one not in done.runs}
    if (more := len(bank) - len(outputs)) > 0:
        left[f"the {more:,} samples after the first {len(outputs):,}"] = _TOO_MANY
    runs = tuple(done.runs[one] for one in found if one in done.runs)
    return Trial(outputs, runs, left, len(bank))


@contextmanager
def _told(progress: OnProgress | bool | None) -> Iterator[OnProgress]:
    """Whom to tell of each run: the given function, a bar for True, or nobody."""
    if progress is True:
        with bars() as show:
            yield lambda done, n, _: show(done, n, "trying")
    else:
        yield progress or (lambda done, n, _: None)


def _affordable(bank: Bank, budget: float) -> int:
    """How many samples Prudent alone gets through, one by one, in its share of the budget."""
    few = Outputs.of(bank, _PROBE)
    runs = [run_one(few, Candidate("prudent", 1), np.inf) for _ in range(_TIMES)]
    took = min(run.seconds for run in runs if run is not None) / len(few)
    most = 1000 * max(1, int(_SHARE * budget / took / 1000))  # a round number, to go on from
    return len(bank) if len(bank) <= 2 * most else most


@dataclass(frozen=True, eq=False)
class Trial:
    """What came of trying methods on a stream.

    Attributes
    ----------
    outputs : Outputs
        What all of them saw.
    runs : tuple of Run
        What was run, the likeliest methods first.
    left : mapping of str to str
        What was not run, and why.
    available : int
        How many samples the bank has; those of ``outputs`` are its first.
    labels : Draw or None
        Labels of a few samples, by which gains are measured.
    command : str
        What applies a method to where the outputs are from, with METHOD in its place; lines of
        Python if empty.
    names : str
        The file that tells ``lametta serve`` the names of the classes, such as the bank itself.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bank = Bank(rng.normal(size=(40, 3)), rng.normal(size=(40, 2)))
    >>> trial = try_methods(bank, ["prudent"], jobs=1)
    >>> trial.advice.method, trial.look.samples, trial.table().header[:2]
    ('source', 40, ['method', 'changed'])
    """

    outputs: Outputs
    runs: tuple[Run, ...]
    left: Mapping[str, str]
    available: int
    labels: Draw | None = None
    command: str = ""
    names: str = ""

    @cached_property
    def watched(self) -> Run | None:
        """The run of Prudent that the look at the stream comes from, one by one if it is there."""
        found = [run for run in self.runs if run.candidate.method == "prudent" and run.series]
        return min(found, key=lambda run: run.candidate.batch_size, default=None)

    @cached_property
    def look(self) -> Look:
        """What the stream shows without labels."""
        return look(self.outputs, self.watched)

    @cached_property
    def begins(self) -> dict[str, list[int]]:
        """Where scenes begin in a stream of frames, or domains in one that shows such an order."""
        seen, watched = self.look, self.watched
        if watched is None or seen.copies is None:
            return {}
        if seen.copies > SURE_COPY:
            return {"scene": scenes(self.outputs, along(watched, "novelty", self.outputs))}
        if (seen.by_classes or 0.0) > (seen.by_other or 0.0):
            return {}
        return {"domain": domains(self.outputs)}

    @cached_property
    def guesses(self) -> dict[str, Estimate]:
        """The gain of each run, estimated without labels, by its title."""
        return {
            run.candidate.title: estimate(self.outputs, run, self.runs, self.look.kinship)
            for run in self.runs
        } | self._foreseen

    @cached_property
    def foreseeing(self) -> list[Run]:
        """Runs that are clearly better than Prudent without a label, the best first."""
        if self.look.kinship < LEAST_KINSHIP:
            return []
        return foreseeing(self.outputs, self.runs, self.look)

    @property
    def _foreseen(self) -> dict[str, Estimate]:
        methods = {run.candidate.method for run in self.foreseeing}
        found = {}
        for run in self.runs:
            if run.candidate.method in methods:
                share = float(np.mean(run.after != self.outputs.before))
                low, usual, high = (share * r for r in GAINED)
                found[run.candidate.title] = Estimate(usual, low, high)
        return found

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The gain of each run by its title: measured by ``labels``, or estimated without."""
        if self.labels is None or not self.labels.known:
            return self.guesses
        found, before = dict(self.guesses), self.outputs.before
        for run in self.runs:
            if (title := run.candidate.title) in self.labels.runs:
                share = float(np.mean(run.after != before))
                guess = self.guesses[title].gain / share if share else 0.0
                found[title] = measure(self.labels, run.after, before, guess)
        return found

    @cached_property
    def advice(self) -> Advice:
        """What to take, by what is known without ``outputs.labels``, which tell how it did."""
        found = advise(
            self.outputs,
            self.runs,
            self.estimates,
            self.look,
            self.labels,
            self.foreseeing,
            self.names,
        )
        if not (self.command and found.code):
            return found
        return replace(found, code=self.command.replace("METHOD", found.method), watch="")

    def draw(self, n: int) -> Draw:
        """Draw samples whose labels would settle soonest what to take; the first n of more.

        Those that are labeled keep their labels.
        """
        taken = replace(self, labels=None).advice.title
        found = draw(self.outputs, self.runs, self.guesses, taken, n)
        if self.labels is None:
            return found
        if self.labels.sizes != found.sizes:
            raise LamettaError(
                "labels must be of a draw among the same runs: other methods were run by now"
            )
        return found.labeled(dict(zip(self.labels.rows, self.labels.labels, strict=True)))

    def measured(self, labels: Draw) -> "Trial":
        """The same trial with gains measured by labels of a `draw`."""
        check(labels, self.outputs)
        return replace(self, labels=labels)

    @property
    def shown(self) -> Run | None:
        """The run that strips and samples show: the advised one, or else Prudent's."""
        titles = {run.candidate.title: run for run in self.runs}
        first = next(iter(self.runs), None)
        return titles.get(self.advice.title, self.watched or first)

    def gain(self, run: Run) -> float | None:
        """The share of samples that a run gains over the network, where labels are known."""
        if not run.scores or self.outputs.labels is None:
            return None
        return run.scores["accuracy"] - float(np.mean(self.outputs.before == self.outputs.labels))

    def class_name(self, index: int) -> str:
        """What people call a class."""
        names = self.outputs.classes
        if names == IMAGENET:
            return IMAGENET_NAMES[index]
        return names[index] if names else f"class {index}"

    def frame(self) -> pl.DataFrame:
        """A row for each run, with all that is known of it."""
        rows = []
        for run in self.runs:
            one, gain = self.estimates[run.candidate.title], self.gain(run)
            row: dict[str, Any] = {
                "method": run.candidate.method,
                "batch_size": run.candidate.batch_size,
                "changed": float(np.mean(run.after != self.outputs.before)),
                "estimate": one.gain,
                "low": one.low,
                "high": one.high,
                "labels": one.labels,
                "agreement": self._agreement(run),
                "ms_a_sample": 1000 * run.seconds / len(self.outputs),
            }
            rows.append(row | ({} if gain is None else {"gain": gain, **run.scores}))
        return pl.DataFrame(rows)

    def _agreement(self, run: Run) -> float | None:
        """Of the samples that it changes, the share that most other methods change alike."""
        others = {
            one.candidate.method: one.after
            for one in self.runs
            if one.candidate.method != run.candidate.method
        }
        changed = run.after != self.outputs.before
        if not others or not changed.any():
            return None
        alike = np.mean([after[changed] == run.after[changed] for after in others.values()], axis=0)
        return float(np.mean(alike >= 0.5))

    def table(self) -> Table:
        """A row for each run: with labels the best first, without by the estimate of the gain."""
        frame = self.frame()
        scored = "gain" in frame.columns
        way = "estimated" if self.estimates is self.guesses else "measured"
        header = ["method", "changed", f"{way} gain", "agrees"]
        header += ["accuracy", "worst group", "ECE", "NLL"] if scored else []
        rows = []
        if len(frame):
            frame = frame.sort("gain" if scored else "estimate", descending=True)
        for row in frame.iter_rows(named=True):
            title = Candidate(row["method"], row["batch_size"]).title
            one = self.estimates[title]
            agrees = row["agreement"]
            entries = [
                Entry(title, best=title == self.advice.title),
                Entry(percent(row["changed"])),
                Entry(percent(one.gain, signed=True), note=one.interval),
                Entry("" if agrees is None else percent(agrees)),
            ]
            if scored:
                gain = percent(row["gain"], signed=True)
                entries += [
                    Entry(percent(row["accuracy"]), 100 * row["gain"], gain),
                    Entry(percent(row["worst_group"])),
                    Entry(percent(row["ece"])),
                    Entry(f"{row['nll']:.2f}"),
                ]
            rows.append([*entries, Entry(f"{row['ms_a_sample']:.2f}")])
        footnote = (
            "In percent, and points of accuracy. Changed: samples of another class than the "
            f"network's. {way.capitalize()} gain: {self._source}, below it the 90 % interval. "
            "Agrees: of its changes, those that most other methods make, too."
        )
        if scored:
            right = float(np.mean(self.outputs.before == self.outputs.labels))
            footnote += f" The network alone is right in {percent(right)} %."
        return Table(
            "methods",
            "Every method on this stream",
            [*header, "ms a sample"],
            rows,
            frame,
            footnote,
        )

    @property
    def _source(self) -> str:
        """What gains are known from."""
        if self.labels is None or not self.labels.known:
            return "without labels"
        return f"by {self.labels.known} labels among {len(self.outputs):,} samples"

    def group_table(self) -> Table | None:
        """What the shown run does in each group; None where there are no groups."""
        run, outputs = self.shown, self.outputs
        if run is None or outputs.groups is None:
            return None
        named = ((str(outputs.groups[rows[0]]), rows) for rows in outputs.streams)
        frame = pl.DataFrame([self._in_group(run, name, rows) for name, rows in named])
        header = ["group", "samples", "changed", "estimated gain"]
        if outputs.labels is None:
            frame = frame.sort("changed", descending=True, maintain_order=True)
        else:
            frame = frame.with_columns(gain=pl.col("after") - pl.col("before"))
            frame = frame.sort("gain", maintain_order=True)
            header += ["before", "after"]
        rows = [self._group_entries(row) for row in frame.head(_GROUPS).iter_rows(named=True)]
        more = len(frame) - len(rows)
        note = f"and {more} groups more, in the CSV file" if more else ""
        return Table("groups", f"Groups under {run.candidate.title}", header, rows, frame, note)

    def _in_group(self, run: Run, name: str, rows: Index) -> dict[str, Any]:
        """What a run does in a group, given by its name and rows."""
        outputs, seen = self.outputs, self.look
        one = estimate(outputs, run, self.runs, seen.kinship, rows, seen.copies or 0.0)
        changed = float(np.mean(run.after[rows] != outputs.before[rows]))
        row = {"group": name, "samples": len(rows), "changed": changed}
        row |= {"estimate": one.gain, "low": one.low, "high": one.high}
        if outputs.labels is not None:
            for side, answers in (("before", outputs.before), ("after", run.after)):
                row[side] = float(np.mean(answers[rows] == outputs.labels[rows]))
        return row

    def _group_entries(self, row: Mapping[str, Any]) -> list[Entry]:
        one = Estimate(row["estimate"], row["low"], row["high"])
        entries = [
            Entry(row["group"]),
            Entry(f"{row['samples']}"),
            Entry(percent(row["changed"])),
            Entry(percent(one.gain, signed=True), note=one.interval),
        ]
        if "gain" in row:
            gain = 100 * row["gain"]
            entries += [Entry(percent(row["before"])), Entry(percent(row["after"]), gain)]
        return entries

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "samples": len(self.outputs),
            "available": self.available,
            "labels": self.outputs.labels is not None,
            "look": {**vars(self.look), "order": self.look.order, "begins": self.begins},
            "advice": vars(self.advice),
            "runs": self.frame().to_dicts(),
            "labels_known": 0 if self.labels is None else self.labels.known,
            "untested": dict(self.left),
        }

    def _repr_markdown_(self) -> str:
        advice = self.advice  # notebooks show it
        return f"**{advice.headline}** {advice.reason}\n\n{self.table().markdown()}"

    def write(
        self,
        path: PathLike,
        *,
        title: str = "Your stream",
        command: Sequence[str] = (),
        pictures: Pictures | None = None,
        to_label: Draw | None = None,
    ) -> Path:
        """Write the page, one HTML file with everything in it, and give its path.

        Parameters
        ----------
        path : path
            The file.
        title : str
            What the stream is called.
        command : sequence of str
            What makes the page again.
        pictures : callable, optional
            From the position of a sample to its image.
        to_label : Draw, optional
            Samples that the page shows to be labeled.
        """
        return write_page(
            self, path, title=title, command=command, pictures=pictures, to_label=to_label
        )
