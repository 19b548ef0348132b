"""Fingerprints that must not change; by itself, so that another process can make them too."""

import numpy as np

from lametta.stream import (
    Scenario,
    effective_classes,
    gradual,
    label_shift,
    long_tail,
    markov,
    orders,
    ratios,
    zipf,
)

GOLDEN = {
    "iid": "21407bfadc307d0a",
    "recorded": "0ab91eb775746be7",
    "by_class": "0a787bf7c09022de",
    "by_group": "ed995a23f337780c",
    "dirichlet": "44a14dccedb8bdb9",
    "interleaved": "1f6d32a9cf0d5d27",
    "mixed": "ff93c52ffb6493dc",
    "gradual": "80cb21d7e5999568",
    "recurring": "6f8621732104e4bc",
    "zipf": "8d831003193a8569",
    "zipf test": "969f58ccbe61784f",
    "ratios": "0ee70c244755c9cc",
    "effective": "0428bc766242c27e",
    "markov": "8b0be661a55e2a68",
    "label_shift": "05067ef90437a808",
    "alone": "3b4195a5bc8d97fd",
    "tracks": "ae9af3ddc24f857a",
    "few_classes": "cfd7fd3746b1d498",
    "balanced_dirichlet": "cb4246123f627fee",
    "each_group": "9d4a1e49f00d9607",
    "imbalanced": "e47293f1448eb255",
    "repeated": "8c44908c7cbf61ab",
    "severity_ramp": "f3a2670fed35811c",
    "long tail": "38e5705f90b642b0",
    "sine": "e68dd4feaa5dba9e",
}


def golden():
    """Fingerprints of a fixed data set in every order, and of some priors."""
    labels = (np.arange(500) ** 2 // 7) % 20
    groups = [f"video {i // 25 % 7}" for i in range(500)]
    keys = [f"{i:04}.jpg" for i in range(500)]
    # Its groups have to be severities.
    named = [name for name in orders() if name != "severity_ramp"]
    scenarios = {name: Scenario(name, seed=3, limit=400) for name in named}
    scenarios["zipf"] = Scenario("by_group", "zipf", batch_size=16)
    scenarios["zipf test"] = Scenario("dirichlet", zipf(variant="test"), batch_size=16)
    scenarios["ratios"] = Scenario(prior=ratios({3: 0.5, 4: 0.25}))
    scenarios["long tail"] = Scenario(markov(0.8, stay_domain=0.5), long_tail(10, 5))
    scenarios["sine"] = Scenario(label_shift("sinusoidal"), batch_size=16)
    scenarios["effective"] = Scenario(gradual(sequence="given"), effective_classes(5))
    levels = [f"{'fog' if i < 250 else 'snow'}/{1 + i % 5}" for i in range(500)]
    ramp = Scenario("severity_ramp", seed=3, limit=400)(labels, levels, keys=keys)
    return {
        "severity_ramp": ramp.fingerprint[:16],
        **{
            name: scenario(labels, groups, keys=keys).fingerprint[:16]
            for name, scenario in scenarios.items()
        },
    }
