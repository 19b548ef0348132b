"""Memory: priors from the past, trusted as far as they foretold what came."""

from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_choice
from lametta.correctors import _evidence, _scenes
from lametta.correctors._state import Remembering, State

_LEAVE = 1e-4  # the chance, at each sample, that a track becomes another object's


@dataclass
class Memory(Remembering):
    """What was around a sample tells what it is, as far as the past has shown that it does.

    Near-copies of the sample before, as frames of a video are, are one scene, whose probabilities
    are averaged (the mean of their logarithms) and which counts once. What a *camera* shows is
    mixed: memories of the classes before are priors for the next, and each is weighed by its
    prequential evidence, how well it foretold the samples so far, with the source among them. On
    streams without order the source prevails. A *track* shows one object: the scenes'
    probabilities are multiplied, and a small chance to be another object keeps the product from
    being sure of what a few samples said.

    No data can tell the two apart, so the user has to: a camera that stays with one class
    learns nothing from its order.

    Bounded memory: 59 kB a stream at 1000 classes and 1280 features for a camera, 43 kB for a
    track. Answers are final and depend on the past alone.

    ``info`` has the mean ``novelty`` (near 0 for frames of a video), and of a camera also ``trust``
    (the weight of all that is not the source's own answer) and ``evidence`` (nats over the source,
    a sample).

    Parameters
    ----------
    scope : {"camera", "track"}
        What one stream is.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(3, 8))
    >>> probs = np.array([[0.7, 0.3], [0.4, 0.6], [0.7, 0.3]])
    >>> Memory("track").correct(features, probs).probs.round(2)
    array([[0.7 , 0.3 ],
           [0.61, 0.39],
           [0.78, 0.22]])
    """

    scope: str = "camera"

    def __post_init__(self) -> None:
        check_choice("scope", self.scope, ("camera", "track"))

    def _begin(self, d: int, k: int) -> State:
        state = _scenes.begin(d, k)
        if self.scope == "camera":
            return state | _evidence.begin(k)
        # The prior of the scene, and its posterior.
        return state | {"prior": np.full(k, 1 / k), "posterior": np.full(k, 1 / k)}

    def _advance(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, scenes, _ = _scenes.arrive(state, features, probs)
        info = {"novelty": sum(novelty) / len(novelty)}
        if self.scope == "camera":
            answers, source, evidence = _evidence.judge(state, novelty, _evidence.read(scenes))
            return answers[:, 0], {"trust": 1 - source.mean(), "evidence": evidence.mean(), **info}
        prior, posterior = state["prior"], state["posterior"]
        out = np.empty_like(probs)
        for i, new in enumerate(novelty):
            prior += new * ((1 - _LEAVE) * posterior + _LEAVE / len(prior) - prior)
            posterior[:] = prior * np.maximum(scenes[i], _scenes.TINY)
            posterior /= posterior.sum()
            out[i] = posterior
        return out, info
