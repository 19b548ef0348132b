"""StatA and TransCLIP, against the numbers of their authors' codes."""

import numpy as np
import pytest

from lametta import LamettaError, Windowed
from lametta.correctors import StatA, TransCLIP
from lametta.testing import check_corrector
from tests.correctors.golden import DTYPES, close, vectors, zero_shot

PUBLISHED = {
    "stata": StatA(),
    "stata_soft": StatA(soft=True),
    "stata_alpha5": StatA(alpha=5.0),
    "stata_lambda": StatA(lambda_y=0.5, lambda_w=2.0),
    "transclip_statarepo": TransCLIP(),
    "transclip_original": TransCLIP(),
}
SETS = [
    (name, part)
    for name in PUBLISHED
    for part in ("iid64", "all200", "few")
    if (name, part) != ("transclip_original", "few")
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "part"), SETS)
def test_it_gives_its_authors_numbers(name, part, dtype):
    stored, kind = vectors("stata_transclip"), "f64" if dtype == np.float64 else "f32"
    features, _, head = zero_shot(dtype)
    method = PUBLISHED[name]
    method.use(head)
    found = method.correct(features[stored[f"index.{part}"]], stored[f"y.{part}.{kind}"]).probs
    assert found.dtype == dtype
    close(found, stored[f"{name}.{part}.{kind}"], dtype)


@pytest.mark.slow(2)
@pytest.mark.parametrize("method", [Windowed(StatA(), 8), Windowed(TransCLIP(), 8)], ids=repr)
def test_in_windows_they_answer_streams(method):
    check_corrector(method)


def test_what_is_refused():
    with pytest.raises(LamettaError, match="alpha must be a finite number > 0, got 0"):
        StatA(alpha=0)
    for kind in (StatA, TransCLIP):
        with pytest.raises(LamettaError, match="neighbors must be an integer >= 1, got 0"):
            kind(neighbors=0)
        with pytest.raises(LamettaError, match=f"{kind.__name__} needs prototypes"):
            kind().correct(np.ones((3, 2)), np.eye(3))
        one = kind()
        one.use(zero_shot()[2])
        with pytest.raises(LamettaError, match=r"d and K of the prototypes, \(32, 10\), got"):
            one.correct(np.ones((3, 2)), np.eye(3))
