import json
from dataclasses import dataclass

import numpy as np

from lametta.stream import (
    Scenario,
    as_is,
    dirichlet,
    iid,
    interleaved,
    orders,
    priors,
    ratios,
)
from tests.stream.cases import PRIORS, every_order


@every_order
def test_parameters_make_an_equal_scenario(order):
    for prior in PRIORS:
        scenario = Scenario(order, prior, batch_size=16, seed=4, limit=100)
        again = Scenario(**json.loads(json.dumps(scenario.parameters)))
        assert again == scenario
        assert hash(again) == hash(scenario)


def test_names_and_mappings():
    assert Scenario() == Scenario("iid", "as_is") == Scenario(iid(), as_is())
    slots = {"kind": "dirichlet", "gamma": 0.3, "slots": 4}
    assert Scenario(slots).order == dirichlet(0.3, 4)
    inner = {"kind": "interleaved", "sources": 2, "inside": slots}
    assert Scenario(inner).order == interleaved(2, inside=dirichlet(0.3, 4))
    assert Scenario({"kind": "by_group", "sequence": ["b", "a"]}).order.sequence == ("b", "a")
    assert Scenario(prior={"kind": "ratios", "shares": {"1": 2}}).prior == ratios([0, 2])
    for table in (orders(), priors()):
        for name, summary in table.items():
            assert summary.endswith("."), name


@dataclass(frozen=True)
class backward:  # noqa: N801
    step: int = 1

    def __call__(self, labels, groups, rng, /):
        return np.arange(len(labels))[:: -self.step]


def test_an_order_of_your_own():
    stream = Scenario(backward(2))([0, 0, 0])
    assert stream.index.tolist() == [2, 0]
    assert stream.manifest["scenario"]["order"] == {"kind": "backward", "step": 2}
