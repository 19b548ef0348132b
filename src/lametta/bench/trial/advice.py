"""What to take, why, and at what risk, in plain words: by what can be known without labels."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import lametta.correctors
from lametta import methods
from lametta.bench.trial.gains import LEAST_KINSHIP, Estimate
from lametta.bench.trial.labels import Draw, measure
from lametta.bench.trial.runs import Outputs, Run
from lametta.bench.trial.stream import Look

_STILL = 0.005  # the share of changes up to which Prudent keeps still


@dataclass(frozen=True)
class Advice:
    """What to take.

    Attributes
    ----------
    method : str
        By name; "source" for nothing.
    title : str
        As `lametta.bench.trial.runs.Candidate.title`; empty for nothing.
    headline, reason, risk : str
        What to do, why, and what may go wrong.
    code : str
        The line that does it.
    watch : str
        What shows what it would do, and answers with the network's own predictions.
    """

    method: str
    title: str
    headline: str
    reason: str
    risk: str
    code: str
    watch: str = ""


def advise(
    outputs: Outputs,
    runs: Sequence[Run],
    estimates: Mapping[str, Estimate],
    look: Look,
    labels: Draw | None = None,
    foreseeing: Sequence[Run] = (),
    names: str = "",
) -> Advice:
    """Advise by the estimated gains: Prudent where it may help, and nothing where it would hurt.

    Another method takes Prudent's place only where the whole interval of its gain lies above that
    of Prudent's estimate, where ``labels`` say that it gains more, or, without these, where it is
    the first that foresees clearly more. Labels of ``outputs`` are not looked at. ``names`` is the
    file that tells a server the names of the classes.

    Examples
    --------
    >>> look = Look(9, 3, 1, 2.5, 0.6, 0.4)
    >>> advise(Outputs(np.eye(2), np.eye(2)), [], {}, look).headline
    'Take nothing: no method was run.'
    """
    best = _chosen(outputs, runs, estimates, labels, foreseeing)
    if best is None:
        return _nothing("no method was run.", "There is nothing to compare.", "None.")
    one, title = estimates[best.candidate.title], best.candidate.title
    changed = float(np.mean(best.after != outputs.before))
    about = f"{title} would change {changed:.1%} of the answers"
    if look.kinship < LEAST_KINSHIP and not one.labels:
        return _nothing(
            "samples that look alike are of different classes.",
            f"{about}. But neighbors agree in {look.kinship:.0%} of what the network's confidence "
            "promises, as if each class came once: there is nothing to learn from others.",
            "That a correction would have helped after all; a few hundred labels would tell.",
        )
    if changed > _STILL and one.gain <= 0:
        return _nothing(
            "no change that was tried looks right.",
            f"{about}{'' if one.labels else ', and other methods do not agree'}. {_evidence(one)}",
            "That a correction would have helped after all. A few hundred labels in the order of "
            "the stream would tell.",
        )
    if changed <= _STILL:
        return _nothing(
            "there is nothing to gain that can be seen.",
            f"{about}: it found no structure to draw on. {_order(look)}",
            "Little. With Prudent in place, a stream that gets an order later would be corrected.",
        )
    by = f"by {one.labels} labels" if one.labels else "without labels"
    what = "so few labels" if one.labels else "the estimate"
    sure = "" if one.verdict == "helps" else f", in shadow mode first: {what} cannot tell"
    return Advice(
        best.candidate.method,
        title,
        f"Take {title}{sure}; about {100 * one.gain:+.0f} points, {by} {one.interval} at 90 %.",
        f"{about}. {_foresight(best, foreseeing, one)}{_evidence(one)} {_order(look)}",
        _risk(look, best),
        _code(best, outputs),
        _watch(best, outputs, names),
    )


def _chosen(
    outputs: Outputs,
    runs: Sequence[Run],
    estimates: Mapping[str, Estimate],
    labels: Draw | None,
    foreseeing: Sequence[Run],
) -> Run | None:
    """The usual run, unless another one clearly gains more."""
    if not runs:
        return None

    def gain(run: Run) -> float:
        return estimates[run.candidate.title].gain

    best = max(runs, key=gain)
    own = [run for run in runs if run.candidate.method == _usual(outputs, runs)]
    if not own:
        return best
    usual = max(own, key=gain)
    if labels is not None and estimates[best.candidate.title].labels:
        ahead = measure(labels, best.after, usual.after).low > 0
        return best if ahead or gain(usual) <= 0 else usual
    if foreseeing:
        return foreseeing[0]
    return best if estimates[best.candidate.title].low > max(gain(usual), 0.0) else usual


def _usual(outputs: Outputs, runs: Sequence[Run]) -> str:
    """Track for groups that are known to be one object, and else Prudent."""
    tracked = outputs.single and any(run.candidate.method == "track" for run in runs)
    return "track" if tracked else "prudent"


def _nothing(headline: str, reason: str, risk: str) -> Advice:
    return Advice("source", "", f"Take nothing: {headline}", reason, risk, "")


def _evidence(one: Estimate) -> str:
    said = {
        "helps": "the whole interval lies above 0.",
        "hurts": "the whole interval lies below 0.",
        "cannot tell": "the interval holds 0, so that "
        f"{'more labels' if one.labels else 'labels alone'} can settle it.",
    }[one.verdict]
    what = f"By {one.labels} labels the gain" if one.labels else "The estimate"
    return f"{what} is {100 * one.gain:+.1f} points ({one.interval}): {said}"


def _foresight(best: Run, foreseeing: Sequence[Run], one: Estimate) -> str:
    if one.labels or best not in foreseeing:
        return ""
    return (
        "Its answers say better than Prudent's what the next sample is seen as, clearly beyond "
        "chance, and so know more of the classes. "
    )


def _order(look: Look) -> str:
    return " ".join(look.sentences()[2:3])


def _risk(look: Look, best: Run) -> str:
    said = []
    if best.candidate.method == "track":
        said.append("Track takes a whole group for one object; where it shows two, one is lost.")
    elif best.candidate.method == "smoothing":
        said.append("It gains from long runs of a class; where they get short it loses much.")
    elif best.candidate.method != "prudent":
        said.append("This method does not ask whether the stream is still like this one.")
    if look.copies is not None and look.copies > 0.5:
        said.append(
            "Frames that follow each other are wrong together: where the network is wrong in most "
            "of a scene, the correction is wrong in all of it, and surer."
        )
    if best.candidate.batch_size > 1:
        said.append(
            f"It was run in batches of {best.candidate.batch_size}; one by one it may gain less."
        )
    said.append("Gains end where the order ends: watch info['changed'] and info['evidence'].")
    return " ".join(said)


def _code(best: Run, outputs: Outputs) -> str:
    made, ids = _made(best), ""
    if outputs.groups is not None:
        made, ids = f"lametta.Streams({made})", ", groups"
    return (
        f"corrector = {made}  # then, as samples come:\n"
        f"probs = corrector.correct(features, probs{ids}).probs"
    )


def _watch(best: Run, outputs: Outputs, names: str) -> str:
    made, whose, stream = f"lametta.Shadow({_made(best)})", "the stream", "camera-1"
    if outputs.groups is not None:
        made, whose, stream = f"lametta.Streams({made})", "its group", str(outputs.groups[0])
    named = json.dumps({"sequence_id": stream}, ensure_ascii=False)
    serve = ["lametta", "serve", "--shadow", "--corrector", best.candidate.method]
    if names:
        serve += ["--names", names]
    return (
        f"{shlex.join(serve)}  # its page is at /\n"
        f'# Each request names {whose}, "parameters": {named}; without, it stands alone.\n'
        f"corrector = {made}  # or in Python"
    )


def _made(best: Run) -> str:
    (part,) = methods.find(best.candidate.method).components
    name = getattr(part.factory, "__name__", "")
    home = "lametta" if name in lametta.__all__ else "lametta.correctors"
    return f"{home}.{name}()" if hasattr(lametta.correctors, name) else repr(part.name)
