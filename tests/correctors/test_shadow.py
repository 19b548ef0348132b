import numpy as np
import pytest

import lametta
from lametta import LAME, LamettaError, Prudent, Shadow, Streams
from lametta.correctors import Average, Chain
from lametta.testing import check_corrector
from tests.conftest import make_batch


@pytest.mark.parametrize("corrector", [Prudent(), Average(), LAME(), Chain((Average(), LAME()))])
def test_the_contract(corrector):
    check_corrector(Shadow(corrector, size=4))


def test_it_answers_as_the_source_and_counts_as_a_loop_would():
    shadow, own = Shadow(Average(), size=5), Average()
    lost, gained, found = np.zeros(6, int), np.zeros(6, int), []
    n = 0
    for seed in range(4):
        features, probs = make_batch(30, 6, seed=seed, scale=1.0)
        prediction = shadow.correct(features, probs)
        assert prediction.probs is probs
        expected = own.correct(features, probs)
        changes = 0
        for q, p in zip(probs, expected.probs, strict=True):
            before, after = int(q.argmax()), int(p.argmax())
            if before != after:
                changes += 1
                lost[before] += 1
                gained[after] += 1
                found.append((n, before, after))
            n += 1
        assert prediction.info["shadow_changed"] == changes / 30
        assert prediction.info["changed"] == 0
    differences = shadow.differences
    assert (differences.samples, differences.changed) == (120, len(found))
    assert len(found) > 10
    np.testing.assert_array_equal(differences.lost, lost)
    np.testing.assert_array_equal(differences.gained, gained)
    np.testing.assert_array_equal(
        differences.corrected - differences.source, differences.gained - differences.lost
    )
    assert [one[:3] for one in differences.last()] == found[-5:]


def test_its_state_is_stored_with_that_of_the_corrector():
    features, probs = make_batch(60, 6, scale=1.0)
    one, other = Shadow(Prudent()), Shadow(Prudent())
    one.correct(features[:30], probs[:30])
    other.load_state_dict(one.state_dict())
    for shadow in (one, other):
        shadow.correct(features[30:], probs[30:])
    assert one.differences.last() == other.differences.last()
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name])
    assert sum(x.nbytes for x in one.state_dict().values()) == one.state_nbytes(16, 6)
    one.reset()
    assert one.state_dict() == {}
    assert one.differences.changed == 0


def test_each_stream_has_its_own():
    streams = Streams(Shadow(Average()))
    features, probs = make_batch(20, 6, scale=1.0)
    ids = ["door", "yard"] * 10
    answers = streams.correct(features, probs, ids)
    np.testing.assert_array_equal(answers.probs, probs)
    counts = [int(x) for name, x in streams.state_dict().items() if name.endswith("shadow.samples")]
    assert counts == [10, 10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"odd": np.zeros(1)}, "names of shadow. and corrector., got others"),
        ({"shadow.last": np.zeros((3, 3), int)}, r"state\['shadow.last'\] must be int64 of shape"),
        ({"shadow.classes": np.full((4, 6), -1)}, "must be from 0 to"),
        ({"shadow.confidences": np.full((64, 2), np.nan, np.float32)}, "must be finite, got NaN"),
        ({"shadow.confidences": np.full((64, 2), 2, np.float32)}, "must be from 0 to 1.01"),
        ({"shadow.samples": np.float64(3)}, "must be int64 of shape"),
        ({"corrector.total": np.full(6, np.nan)}, "must be"),
    ],
)
def test_a_state_that_cannot_be_changes_nothing(change, message):
    shadow = Shadow(Average())
    shadow.correct(*make_batch(9, 6, scale=1.0))
    before = shadow.state_dict()
    with np.errstate(all="ignore"), pytest.raises(LamettaError, match=message):
        shadow.load_state_dict(before | change)
    for name, array in shadow.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_what_is_no_shadow():
    with pytest.raises(LamettaError, match="size must be an integer >= 1, got 0"):
        Shadow(Average(), size=0)
    with pytest.raises(LamettaError, match="corrector must have correct and reset, got the class"):
        Shadow(Average)
    with pytest.raises(LamettaError, match="state must have nothing of LAME"):
        Shadow(LAME()).load_state_dict({"corrector.x": np.zeros(1)})


def test_prototypes_go_to_the_corrector():
    shadow = Shadow(lametta.correctors.T3A())
    assert shadow.needs == {"prototypes"}
    shadow.use(lametta.types.Prototypes(np.ones((6, 16))))
    assert shadow.prototypes is not None
    features, probs = make_batch(4, 6)
    assert shadow.correct(features, probs).probs is probs
