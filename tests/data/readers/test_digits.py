"""The embedded digits: what each data set holds, what is done to the images, and the network."""

import re
import sys
from importlib import resources

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from lametta import LamettaError, lame
from lametta.data.readers import digits
from lametta.data.readers.digits import make_digits, part
from lametta.torch import Classifier
from lametta.torch.digits import NETS, digits_net
from lametta.torch.select import layers_of
from tests.test_package import run_python

DIGITS = load_digits()
NAMES = (
    "digits_val", "digits_c_val", "digits_super", "digits_v2", "digits_c_test", "digits_vid",
    "digits_tao",
)  # fmt: skip
VALIDATION, TEST = NAMES[:3], NAMES[3:]
CORRUPTIONS = digits.VALIDATION | digits.TEST


def rng(seed=0):
    return np.random.default_rng(seed)


def originals(data):
    """Which of scikit-learn's digits each sample was made from."""
    return np.array([int(re.search(r"\d{4}", key)[0]) for key in data.keys])


def outputs(net, data):
    """Features and probabilities of a whole data set, in NumPy."""
    with Classifier(net, classes=data.class_map) as model:
        parts = [model(part) for part in torch.from_numpy(data.samples).split(200)]
    features = np.concatenate([part.features for part in parts])
    return features, np.concatenate([part.logits.softmax(1) for part in parts])


def accuracy(probs, labels):
    return 100 * (probs.argmax(axis=1) == labels).mean()


@pytest.fixture(scope="module")
def net():
    return digits_net()


@pytest.fixture(params=NAMES)
def data(request):
    return make_digits(request.param)


# Data sets


def test_entries_are_the_data_sets():
    assert tuple(digits.ENTRIES) == tuple(f"embedded:{name}" for name in NAMES)
    assert all(entry.summary and "\n" not in entry.summary for entry in digits.ENTRIES.values())


@pytest.mark.slow
def test_samples_are_inputs_of_the_network(data):
    assert data.samples.shape == (len(data), 1, 8, 8)
    assert data.samples.dtype == np.float32
    assert 0 <= data.samples.min() < data.samples.max() <= 1
    assert len(set(data.keys)) == len(data)
    assert 400 <= len(data) <= 2000
    assert set(data.labels) == set(range(len(data.classes)))


@pytest.mark.slow
def test_load_gives_the_same_each_time_and_shares_no_memory(data):
    first = data.samples.copy()
    data.samples[:] = 0
    np.random.seed(5)  # noqa: NPY002 - the global state must not matter
    for again in (make_digits(data.name), digits._made.__wrapped__(data.name)):
        np.testing.assert_array_equal(again.samples, first)
        assert again.fingerprint == data.fingerprint


def test_plain_digits_are_those_of_scikit_learn():
    data = make_digits("digits_val")
    np.testing.assert_array_equal(data.samples[:, 0] * 16, DIGITS.images[900:1350])
    np.testing.assert_array_equal(data.labels, DIGITS.target[900:1350])


@pytest.mark.slow
def test_parts_are_disjoint_and_complete():
    parts = {
        "train": {int(digit.key) for digit in part("train")},
        "val": {i for name in VALIDATION for i in originals(make_digits(name))},
        "test": {i for name in TEST for i in originals(make_digits(name))},
    }
    assert sum(map(len, parts.values())) == len(DIGITS.target)
    assert set.union(*parts.values()) == set(range(len(DIGITS.target)))
    vid, tao = (set(originals(make_digits(name))) for name in ("digits_vid", "digits_tao"))
    assert not vid & tao


@pytest.mark.slow
def test_labels_are_those_of_the_originals(data):
    originally = DIGITS.target[originals(data)]
    if data.class_map is None:
        assert data.classes == tuple(map(str, range(10)))
        np.testing.assert_array_equal(data.labels, originally)
    else:
        assert data.classes == data.class_map.names
        sure = 50 * np.eye(10)[originally]
        np.testing.assert_array_equal(data.class_map(sure).argmax(axis=1), data.labels)
        assert set(originally) == {source for group in data.class_map.groups for source in group}


def test_super_classes_are_like_those_of_the_paper():
    equal = make_digits("digits_super").class_map
    assert {len(group) for group in equal.groups} == {2}
    assert sum(map(len, equal.groups)) < 10
    assert len({len(group) for group in make_digits("digits_tao").class_map.groups}) > 1


@pytest.mark.parametrize(
    ("name", "corruptions"),
    [
        ("digits_c_val", digits.VALIDATION),
        ("digits_super", digits.VALIDATION),
        ("digits_c_test", digits.TEST),
    ],
)
def test_groups_are_the_corruptions(name, corruptions):
    data = make_digits(name)
    assert list(dict.fromkeys(data.groups)) == list(corruptions)
    for group in corruptions:
        chosen = data.take(np.flatnonzero(data.groups == group))
        assert all(key.startswith(f"{group}/") for key in chosen.keys)
        assert len(chosen) == len(data) / len(corruptions)


def test_validation_and_test_share_no_corruption():
    assert not digits.VALIDATION.keys() & digits.TEST.keys()


@pytest.mark.parametrize("name", ["digits_val", "digits_v2"])
def test_plain_sets_have_no_groups(name):
    assert make_digits(name).groups is None


def test_a_sample_depends_on_its_key_alone():
    data = make_digits("digits_c_val")
    last = part("val")[-1]
    (alone,) = digits._corrupted([last], {"gaussian_noise": digits.gaussian_noise})
    assert alone.key == data.keys[-1]
    np.testing.assert_array_equal(alone.image.astype(np.float32), data.samples[-1, 0])


@pytest.mark.parametrize(("name", "n_frames"), [("digits_vid", 16), ("digits_tao", 8)])
def test_videos_stay_together_and_change_smoothly(name, n_frames):
    data = make_digits(name)
    groups = data.groups.reshape(-1, n_frames)
    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0])) == len(groups)
    assert list(data.keys) == sorted(data.keys)
    videos = data.samples.reshape(-1, n_frames, 64)
    step = np.abs(videos[:, 1:] - videos[:, :-1]).mean()
    leap = np.abs(videos[:, n_frames // 2 :] - videos[:, : n_frames // 2]).mean()
    assert 0 < 2 * step < leap


@pytest.mark.parametrize("function", [make_digits, part])
def test_unknown_names_are_refused(function):
    with pytest.raises(LamettaError, match="name must be one of .*, got 'digits'"):
        function("digits")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for kept in ("_stored", "_made"):
        monkeypatch.setattr(digits, kept, getattr(digits, kept).__wrapped__)
    with pytest.raises(
        LamettaError,
        match=r"an embedded data set needs sklearn: pip install '\.\[sklearn\]' in a clone",
    ):
        make_digits("digits_val")
    with pytest.raises(LamettaError, match="needs safetensors: pip install"):
        digits_net()


@pytest.mark.slow
def test_import_is_light():
    heavy = "'torch', 'sklearn', 'scipy', 'safetensors'"
    code = "import sys, lametta.data.readers.digits\n"
    code += f"print([m for m in ({heavy}) if m in sys.modules])"
    done = run_python(code)
    assert done.stdout.strip() == "[]", done.stderr


# Shifts


def warp_by_definition(image, angle, scale, slant, shift):
    """Each pixel looks up where it came from, between four others; outside is 0."""
    padded = np.pad(image, 1)
    warped = np.zeros_like(image)
    for row in range(8):
        for column in range(8):
            y, x = row - 3.5 - shift[0], column - 3.5 - shift[1]
            y, x = np.cos(angle) * y + np.sin(angle) * x, np.cos(angle) * x - np.sin(angle) * y
            y, x = y / scale, x / scale
            y, x = y + 3.5, x - slant * y + 3.5
            if not (0 <= y <= 7 and 0 <= x <= 7):
                continue
            i, j = int(y), int(x)
            b, a = y - i, x - j
            top = (1 - a) * padded[i + 1, j + 1] + a * padded[i + 1, j + 2]
            bottom = (1 - a) * padded[i + 2, j + 1] + a * padded[i + 2, j + 2]
            warped[row, column] = (1 - b) * top + b * bottom
    return warped


@given(
    seed=st.integers(0, 100),
    angle=st.floats(-2, 2),
    scale=st.floats(0.5, 2),
    slant=st.floats(-1, 1),
    down=st.floats(-3, 3),
    right=st.floats(-3, 3),
)
def test_warp_by_definition(seed, angle, scale, slant, down, right):
    image = np.pad(rng(seed).random((6, 6)), 1)  # a border of paper, so that its edge is no jump
    options = {"angle": angle, "scale": scale, "slant": slant, "shift": (down, right)}
    np.testing.assert_allclose(
        digits.warp(image, **options), warp_by_definition(image, **options), atol=1e-9
    )


def test_warp_of_simple_motions():
    image = np.pad(rng().random((4, 4)), 2)
    np.testing.assert_allclose(digits.warp(image), image)
    np.testing.assert_allclose(digits.warp(image, shift=(1, -2)), np.roll(image, (1, -2), (0, 1)))
    np.testing.assert_allclose(digits.warp(image, angle=np.pi / 2), np.rot90(image), atol=1e-12)


@pytest.mark.parametrize("name", [*CORRUPTIONS, "scan", "tumble", "drive_by"])
def test_shifts_are_pure(name):
    shift = getattr(digits, name)
    more = (5,) if name in ("tumble", "drive_by") else ()
    image = DIGITS.images[0] / 16
    image.flags.writeable = False
    first, again, other = (shift(image, rng(seed), *more) for seed in (1, 1, 2))
    assert first.shape == (*more, 8, 8)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert 0 <= first.min() < first.max() <= 1


def pixelate_by_definition(image, top, left):
    """Each pixel is the mean of its block; what lies outside is 0."""
    rows, columns = np.indices((8, 8))
    block = (rows + top) // 2 * 8 + (columns + left) // 2
    return np.array([image[block == b].sum() / 4 for b in block.ravel()]).reshape(8, 8)


@given(seed=st.integers(0, 1000))
def test_corruptions_do_what_they_say(seed):
    image = rng(seed).random((8, 8)) * 0.4 + 0.1
    changed = {name: shift(image, rng(seed)) for name, shift in CORRUPTIONS.items()}

    raised = changed["brightness"] - image
    np.testing.assert_allclose(raised, raised[0, 0])
    assert 0.2 <= raised[0, 0] <= 0.5

    assert changed["contrast"].mean() == pytest.approx(image.mean())
    ratio = (changed["contrast"] - image.mean()) / (image - image.mean())
    np.testing.assert_allclose(ratio, ratio[0, 0])
    assert 0.35 <= ratio[0, 0] <= 0.55

    assert set(changed["impulse_noise"][changed["impulse_noise"] != image]) <= {0, 1}

    rows, columns = np.nonzero(changed["occlusion"] != image)
    assert np.ptp(rows) == np.ptp(columns) == 2
    assert len(set(changed["occlusion"][rows, columns])) == 1

    assert any(
        np.allclose(changed["pixelate"], pixelate_by_definition(image, top, left))
        for top in (0, 1)
        for left in (0, 1)
    )


def test_noises_have_their_strength():
    gray = np.full((200, 200), 0.5)
    near = np.abs(digits.gaussian_noise(gray, rng()) - gray) <= 0.25
    assert near.mean() == pytest.approx(0.683, abs=0.01)  # within one standard deviation
    hit = digits.impulse_noise(gray, rng())
    for value in (0, 1):
        assert (hit == value).mean() == pytest.approx(0.06, abs=0.01)


@pytest.mark.parametrize("blur", [digits.gaussian_blur, digits.motion_blur])
def test_blurs_spread_a_point_and_keep_its_mass(blur):
    point = np.zeros((16, 16))
    point[8, 8] = 1
    blurred = blur(point, rng())
    assert blurred.sum() == pytest.approx(1, abs=1e-3)
    assert blurred.max() < 0.5
    spread = np.cov(*np.indices((16, 16)).reshape(2, -1), aweights=blurred.ravel(), ddof=0)
    small, large = np.linalg.eigvalsh(spread)
    # A Gaussian is round; a straight path is not.
    assert (large < 1.01 * small) == (blur is digits.gaussian_blur)


# The network


def test_weights_are_small():
    files = [*(resources.files("lametta.torch") / "assets").iterdir()]
    assert {file.name for file in files} == {f"{stem}.safetensors" for stem, _ in NETS.values()}
    assert all(len(file.read_bytes()) < 150_000 for file in files)


def test_networks_are_two_architectures_in_two_trainings():
    nets = {name: digits_net(name).state_dict() for name in NETS}
    plain, mixup, resnet = nets.values()
    assert plain.keys() == mixup.keys() != resnet.keys()
    assert not torch.equal(plain["fc.weight"], mixup["fc.weight"])
    with pytest.raises(LamettaError, match="name must be one of .*, got 'digits_deep'"):
        digits_net("digits_deep")


@pytest.mark.slow
def test_networks_are_as_right_as_the_table_says(data):
    number = r"(\d+\.\d)"
    row = rf"``{data.name}``.* {number}, {number}, {number}$"
    stated = re.search(row, digits.__doc__, flags=re.MULTILINE)
    for name, value in zip(NETS, stated.groups(), strict=True):
        _, probs = outputs(digits_net(name), data)
        assert accuracy(probs, data.labels) == pytest.approx(float(value), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_c_val", "digits_c_test"])
def test_each_corruption_costs_something(net, name):
    data = make_digits(name)
    _, probs = outputs(net, data)
    for group in dict.fromkeys(data.groups):
        chosen = data.groups == group
        assert 50 < accuracy(probs[chosen], data.labels[chosen]) < 80


@pytest.mark.parametrize(("name", "norms", "width"), [
    ("digits", 2, 64), ("digits_mixup", 2, 64), ("digits_resnet", 3, 32),
])  # fmt: skip
def test_networks_fit_the_adapters(name, norms, width):
    net = digits_net(name)
    assert not net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    x = torch.rand(3, 1, 8, 8)
    places = [layer.place for layer in layers_of(net, x) if layer.is_norm]
    assert sum(place < 0.5 for place in places) == sum(place >= 0.5 for place in places) == norms
    with Classifier(net) as model:
        output = model(x)
    assert model.head is net.fc
    assert output.features.shape == (3, width)
    assert output.logits.shape == (3, 10)


def test_network_leaves_the_seed_alone_and_shares_nothing(net):
    before = torch.get_rng_state()
    other = digits_net()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        other.fc.bias += 1
    assert not torch.equal(other.fc.bias, net.fc.bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "gain"), [("digits_vid", 16, 5), ("digits_v2", 64, 2)]
)
def test_lame_gains_on_videos_and_on_sorted_digits(net, name, batch_size, gain):
    data = make_digits(name)
    order = np.arange(len(data)) if name == "digits_vid" else np.argsort(data.labels, kind="stable")
    features, probs = (array[order] for array in outputs(net, data))
    corrected = [
        lame(features[i : i + batch_size], probs[i : i + batch_size]).probs
        for i in range(0, len(data), batch_size)
    ]
    labels = data.labels[order]
    assert accuracy(np.concatenate(corrected), labels) > accuracy(probs, labels) + gain
