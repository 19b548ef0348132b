"""``lametta correct``: the files it reads and writes, and what it says of groups and batches."""

import csv
import io
import os
import re
import resource
import signal
import sys
import time

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import lametta
from lametta import ClassMap, Prediction
from lametta._files import atomic_write
from lametta.cli import app
from lametta.cli._predictions import read
from lametta.data import Bank
from lametta.data.bank import bank as bank_module
from lametta.data.bank.bank import read_arrays
from lametta.data.bank.safetensors import decode_columns, encode_columns, read_layout, write_blocks
from lametta.data.classes.imagenet import IMAGENET
from tests import processes
from tests.conftest import softmax

CLASSES = ["cat", "dog", "=cow"]
N = 40


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 0], 10)
    return {
        "features": (np.eye(3)[labels] + 0.2 * rng.normal(size=(N, 3))).astype(np.float32),
        "logits": (np.eye(3)[labels] + 0.8 * rng.normal(size=(N, 3))).astype(np.float32),
        "labels": labels,
        "groups": np.array(["@left", "right", "[bold]up"])[np.arange(N) % 3],
        "keys": np.array([f"{i:03}.jpg" for i in range(N)]),
    }


def write_bank(path, arrays, header):
    columns = encode_columns({k: v for k, v in arrays.items() if v.ndim == 1})
    outputs = {name: x for name, x in arrays.items() if x.ndim == 2}
    write_blocks(path, {name: [x] for name, x in (outputs | columns).items()}, header)
    return path


@pytest.fixture
def bank(arrays, tmp_path):
    header = {"model": "net", "classes": CLASSES, "failed": ["x.jpg"], "fingerprint": "5f1c"}
    return write_bank(tmp_path / "bank.safetensors", arrays, header)


def run(*arguments):
    return CliRunner().invoke(app, ["correct", *(str(argument) for argument in arguments)])


def expected(arrays, batch_size=64):
    out = np.empty_like(arrays["logits"])
    for group in np.unique(arrays["groups"]):
        rows = np.flatnonzero(arrays["groups"] == group)
        for i in range(0, len(rows), batch_size):
            part = rows[i : i + batch_size]
            probs = softmax(arrays["logits"][part])
            out[part] = lametta.lame(arrays["features"][part], probs).probs
    return out


def check(found, arrays):
    """What a program finds in the file."""
    probs = expected(arrays)
    np.testing.assert_allclose(found["probs"], probs, atol=1e-6)
    assert np.array_equal(found["before"], arrays["logits"].argmax(1))
    assert np.array_equal(found["after"], probs.argmax(1))
    np.testing.assert_allclose(found["confidence"], probs.max(1), atol=1e-6)
    for name in ("labels", "groups", "keys"):
        assert np.array_equal(found[name], arrays[name])


def test_a_bank_comes_out_like_a_bank(bank, arrays, tmp_path):
    result = run(bank, "-o", tmp_path / "out.safetensors", "--weight", 1)
    assert result.exit_code == 0, result.output
    layout, header = read_layout(tmp_path / "out.safetensors")
    check({name: np.asarray(x) for name, x in decode_columns(layout).items()}, arrays)
    made_by = {"method": "lame", "params": {"weight": 1.0}, "lametta": lametta.__version__}
    assert header == read_layout(bank)[1] | {"corrected": made_by}


def test_a_bank_comes_out_as_arrays(bank, arrays, tmp_path):
    assert run(bank, "-o", tmp_path / "out.npz").exit_code == 0
    with np.load(tmp_path / "out.npz") as found:
        check(found, arrays)
        assert found["classes"].tolist() == CLASSES


def test_tables_are_for_people(bank, arrays, tmp_path):
    probs = expected(arrays)
    for suffix in ("csv", "parquet"):
        assert run(bank, "-o", tmp_path / f"out.{suffix}").exit_code == 0
    frame = pl.read_parquet(tmp_path / "out.parquet")
    assert frame.columns == ["row", "key", "group", "label", "before", "after", "confidence"]
    assert frame["after"].to_list() == [CLASSES[i] for i in probs.argmax(1)]
    assert frame["group"].to_list() == arrays["groups"].tolist()
    np.testing.assert_allclose(frame["confidence"], probs.max(1), atol=1e-6)
    text = (tmp_path / "out.csv").read_text(encoding="utf-8")
    head, *rows = csv.reader(io.StringIO(text))
    assert head == frame.columns
    for row, same in zip(rows, frame.iter_rows(), strict=True):
        assert [cell.removeprefix("'") for cell in row[:-1]] == [str(x) for x in same[:-1]]
        assert float(row[-1]) == pytest.approx(same[-1], rel=1e-5)
        assert not any(cell.startswith(("=", "@")) for cell in row)


def test_without_names_classes_are_numbers(arrays, tmp_path):
    np.savez(tmp_path / "in.npz", **{name: arrays[name] for name in ("features", "logits")})
    assert run(tmp_path / "in.npz", "-o", tmp_path / "out.csv").exit_code == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "row,before,after,confidence"
    assert re.fullmatch(r"0,[012],[012],0\.\d+", lines[1])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent/out.npz", "no such folder: "),
        ("out.txt", "--output must end in .npz, .safetensors, .csv or .parquet, got "),
        ("out", "--output must end in .npz, .safetensors, .csv or .parquet, got "),
        ("folder.npz", "--output must be a file, got "),
        ("file/out.npz", "no such folder: "),
        ("bank.safetensors", "--output must not be IN itself, got "),
        ("link.safetensors", "--output must not be IN itself, got "),
        ("loop/out.npz", "no such folder: "),
        ("/proc/out.npz", "could not write /proc/out.npz: "),
    ],
)
def test_a_wrong_place_is_found_before_the_work(bank, tmp_path, monkeypatch, target, message):
    if target.startswith("/proc") and sys.platform != "linux":
        pytest.skip("needs /proc")
    monkeypatch.setattr("lametta.cli.correct.read", None)
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link.safetensors").symlink_to(bank)
    (tmp_path / "loop").symlink_to("loop")
    result = run(bank, "-o", tmp_path / target)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lametta: {message}")
    assert result.stderr.count("\n") == 1


def test_a_package_that_is_missing_is_found_before_the_work(bank, tmp_path, monkeypatch):
    monkeypatch.setattr("lametta.cli.correct.read", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    result = run(bank, "-o", tmp_path / "out.parquet")
    assert result.exit_code == 2
    assert result.stderr == "lametta: --output in .parquet needs polars: pip install polars\n"


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "csv", "parquet"])
def test_a_full_disk_is_one_line_and_leaves_no_file(bank, tmp_path, suffix):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        result = run(bank, "-o", tmp_path / f"out.{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 2, result.stderr
    assert re.fullmatch(r"lametta: .*out\.\w+: File too large\n", result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["bank.safetensors"]


def test_groups_that_got_worse_are_seen(arrays, tmp_path):
    """A cat among dogs is taken for one: the mean over all may still rise."""
    arrays["groups"] = np.repeat(["[bold]a", "b"], N // 2)
    arrays["logits"] = np.eye(3, dtype=np.float32)[arrays["labels"]]
    arrays["logits"][N // 2 :: 3] = [0.1, 0.2, 0.3]  # unsure, where neighbors help
    arrays["features"][0] = arrays["features"][15]  # looks like a dog
    arrays["logits"][0] = [0.6, 0.5, 0]
    np.savez(tmp_path / "in.npz", **arrays)
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--weight", 5)
    assert result.exit_code == 0, result.output
    assert re.search(r"group +samples +changed +before +after +points", result.stdout)
    worse, better = re.findall(r"^(\S+) +20 +\S+% +\S+% +\S+% +([-+]\S+)$", result.stdout, re.M)
    assert worse == ("[bold]a", "-5.00")
    assert better[0] == "b"
    assert float(better[1]) > 5
    assert "1 of 2 groups got worse" in result.stdout


def test_many_groups_are_counted(arrays, tmp_path):
    arrays["groups"] = np.arange(N) // 2
    np.savez(tmp_path / "in.npz", **arrays | {"groups": arrays["groups"]})
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert "got worse" in result.stdout
    arrays["groups"] = np.arange(N)
    del arrays["labels"]
    np.savez(tmp_path / "in.npz", **arrays)
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert "and 20 groups more" in result.stdout
    assert "got worse" not in result.stdout
    assert "40 of 40 batches have one sample, which lame left as it was" in result.stderr


def test_batches_of_one_are_said_to_do_nothing(bank, tmp_path):
    alone = run(bank, "-o", tmp_path / "out.npz", "--batch-size", 1)
    assert alone.exit_code == 0
    assert alone.stderr.count("\n") == 1
    said = "40 of 40 batches have one sample, which lame left as it was: it corrects the samples of"
    assert alone.stderr.startswith(said)
    assert "a larger --batch-size, or a method with memory, such as prudent" in alone.stderr
    assert run(bank, "-o", tmp_path / "out.npz", "--batch-size", 7).stderr == ""


def test_batches_that_max_iter_cut_short_are_counted(bank, tmp_path):
    result = run(bank, "-o", tmp_path / "out.npz", "--max-iter", 1, "--batch-size", 100000)
    assert re.search(r"not converged +3 of 3 batches, stopped at max_iter", result.stdout)
    result = run(bank, "-o", tmp_path / "out.npz", "--max-iter", 1000)
    assert "not converged" not in result.stdout


def test_a_map_pools_and_lines_labels_up_by_name(arrays, tmp_path):
    rng = np.random.default_rng(1)
    arrays["logits"] = np.repeat(arrays["logits"], 2, axis=1) + rng.normal(size=(N, 6)) / 9
    bank = write_bank(tmp_path / "bank.safetensors", arrays, {"classes": ["cat", "dog", "cow"]})
    names = ["dog", "cow", "cat"]  # another order than that of the labels
    classes = ClassMap({"dog": [2, 3], "cow": [4, 5], "cat": [0, 1]}, n_source=6)
    classes.save(tmp_path / "map.json")
    options = ("--map", tmp_path / "map.json", "--method", "lame", "--max-iter", 0)
    result = run(bank, "-o", tmp_path / "out.npz", *options)
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as found:
        pooled = softmax(classes(arrays["logits"]))
        np.testing.assert_allclose(found["probs"], pooled, atol=1e-6)
        assert found["classes"].tolist() == names
        right = np.array(["cat", "dog", "cow"])[arrays["labels"]]
        assert np.array_equal(found["classes"][found["labels"]], right)
        accuracy = np.mean(found["before"] == found["labels"])
    assert f"accuracy before      {accuracy:.2%}" in result.stdout
    assert accuracy > 0.5
    assert run(bank, "-o", tmp_path / "again.npz").stderr.startswith(
        "labels are not used: they are of 3 classes, and predictions of 6; --map says"
    )
    ClassMap({"cow": [0], "pig": [1]}, n_source=6).save(tmp_path / "other.json")
    other = run(bank, "-o", tmp_path / "again.npz", "--map", tmp_path / "other.json")
    assert other.exit_code == 0
    assert other.stderr.startswith("labels are not used: class_map must have the classes of the")
    assert "accuracy" not in other.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: {}"),
        ("{", "{} is not valid JSON"),
        ("[" * 9999, "{} is not valid JSON"),
        ('{"format": "lametta.ClassMap/1"}', "{} is no class map: "),
        ("[]", "{} is no class map that lametta saved"),
    ],
)
def test_bad_maps(bank, tmp_path, content, message, monkeypatch):
    file = tmp_path / "map.json"
    if content is not None:
        file.write_text(content)
    result = run(bank, "-o", tmp_path / "out.npz", "--map", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lametta: {message.format(repr(str(file)))}")
    ClassMap({"a": [0], "b": [8]}, n_source=9).save(file)
    result = run(bank, "-o", tmp_path / "out.npz", "--map", file)
    assert "logits of IN must have K = 9 classes, got 3" in result.stderr
    monkeypatch.setattr("lametta.classmap._MAX_PADDED", 2)
    ClassMap({"a": [0, 1], "b": [2]}, n_source=3).save(file)
    result = run(bank, "-o", tmp_path / "out.npz", "--map", file)
    assert result.stderr.startswith("lametta: --map must have at most 2 places, ")


def test_nan_is_named_by_row_and_column(arrays, tmp_path):
    for name in ("features", "logits"):
        changed = {key: x.copy() for key, x in arrays.items()}
        changed[name][23, 1] = np.nan  # the eighth row of its group
        np.savez(tmp_path / "in.npz", **changed)
        result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
        assert result.exit_code == 2
        assert f"{name} must be finite, got nan in row 23, column 1" in result.stderr
        assert not (tmp_path / "out.npz").exists()


class Diverging:
    """A corrector of a stranger that gives NaN for one sample."""

    def correct(self, features, probs, /):
        return Prediction(np.where(np.arange(len(probs))[:, None] == 2, np.nan, probs))

    def reset(self):
        pass


class Narrow(Diverging):
    """And one that forgets a class."""

    def correct(self, features, probs, /):
        return Prediction(probs[:, 1:])


def test_what_a_method_gives_is_checked_before_it_is_written(bank, tmp_path):
    for name, message in [
        ("Diverging", "probs of --method must be finite, got nan in row 6, column 0"),
        ("Narrow", "Narrow.correct must return probs (14, 3), got (14, 2)"),
    ]:
        method = f"python:{__name__}:{name}"
        result = run(bank, "-o", tmp_path / "out.npz", "--method", method)
        assert result.exit_code == 2
        assert message in result.stderr
    assert run(bank, "-o", tmp_path / "out.npz", "--weight", "1e300").exit_code == 2
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": np.zeros((N, 0), np.float32)}, "logits must have shape [N, K] with N = 40"),
        ({"features": np.zeros((N, 0), np.float32)}, "features must have shape [N, d] with N = 40"),
    ],
)
def test_files_without_classes_or_features(arrays, tmp_path, changes, message):
    np.savez(tmp_path / "in.npz", **arrays | changes)
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("dtype", [np.longdouble, ">f8", ">f4", np.float16])
def test_all_floats_are_read(arrays, tmp_path, dtype):
    wide = {name: arrays[name].astype(dtype) for name in ("features", "logits")}
    np.savez(tmp_path / "in.npz", **arrays | wide)
    assert run(tmp_path / "in.npz", "-o", tmp_path / "out.npz").exit_code == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["probs"].dtype == (np.float32 if wide["logits"].itemsize < 8 else np.float64)
        np.testing.assert_allclose(found["probs"], expected(arrays), atol=0.02)


@pytest.mark.parametrize("groups", [np.arange(N) % 2 == 0, np.array([b"a", b"\xff"] * (N // 2))])
@pytest.mark.parametrize("suffix", ["npz", "safetensors", "csv", "parquet"])
def test_groups_of_other_types(arrays, tmp_path, groups, suffix):
    np.savez(tmp_path / "in.npz", **arrays | {"groups": groups})
    result = run(tmp_path / "in.npz", "-o", tmp_path / f"out.{suffix}")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("k=2020-01-01", "--set k must be an integer, got datetime.date(2020, 1, 1)"),
        ("k=" + "[" * 5000, "--set k must not be nested so deeply"),
        ("k=3\nweight=2", "--set k must be an integer, got '3\\nweight=2'"),
        ("tol=nan", "--set tol must be a finite number >= 0, got nan"),
    ],
)
def test_settings_that_are_no_values(bank, tmp_path, setting, message):
    result = run(bank, "-o", tmp_path / "out.npz", "--set", setting)
    assert result.exit_code == 2
    assert message in result.stderr


def test_names_are_printed_as_they_are(bank, arrays, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no such file: '[bold]x.npz'" in run("[bold]x.npz", "-o", "out.npz").stderr
    result = run(bank, "-o", "[bold]x.csv")
    assert "wrote [bold]x.csv\n" in result.stdout
    assert "[bold]up" in result.stdout
    assert read_arrays(bank)[0]["groups"].tolist() == arrays["groups"].tolist()


def test_names_that_the_terminal_cannot_show(bank, tmp_path):
    code = "import runpy, sys; sys.stdout.reconfigure(encoding=sys.argv.pop(1), errors='strict');"
    code += "runpy.run_module('lametta', run_name='__main__', alter_sys=True)"
    for encoding, name in [("ascii", "\xfc.csv"), ("utf-8", "\udcff.csv")]:
        done = processes.run("-c", code, encoding, "correct", bank, "-o", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        shown = name.encode(encoding, "backslashreplace").decode(encoding)
        assert f"wrote {shown}\n" in done.stdout
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_what_comes_out_is_a_bank_and_goes_in_again(bank, arrays, tmp_path, suffix):
    once, twice = tmp_path / f"once.{suffix}", tmp_path / f"twice.{suffix}"
    assert run(bank, "-o", once).exit_code == 0
    opened = Bank.open(once)
    assert np.array_equal(opened.features, arrays["features"])
    for name in ("labels", "groups", "keys"):
        assert np.array_equal(getattr(opened, name), arrays[name])
    assert opened.header["classes"] == CLASSES
    probs = expected(arrays)
    np.testing.assert_allclose(softmax(opened(np.arange(N)).logits), probs, atol=1e-6)
    assert run(once, "-o", twice).exit_code == 0
    again = softmax(Bank.open(twice)(np.arange(N)).logits)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(again, expected(arrays | {"logits": np.log(probs)}), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "named"), [("timm:resnet50", True), ("paper:vit_b16", True), ("torch:my:net", False)]
)
def test_imagenets_classes_have_names(tmp_path, model, named):
    logits = np.eye(1000, dtype=np.float32)[[134, 517, 292]]
    arrays = {"features": logits[:, :300], "logits": logits, "labels": np.array([0, 1, 0])}
    header = {"model": model, "classes": ["a", "b"]}
    bank = write_bank(tmp_path / "bank.safetensors", arrays, header)
    assert run(bank, "-o", tmp_path / "out.csv", "--max-iter", 0).exit_code == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()))
    words = ["crane (n02012849)", "crane (n03126707)", "tiger"]
    assert [row["before"] for row in rows] == (words if named else ["134", "517", "292"])
    assert run(bank, "-o", tmp_path / "out.safetensors").exit_code == 0
    known = Bank.open(tmp_path / "out.safetensors").header.get("classes", [])
    assert known == (list(IMAGENET) if named else [])


def test_labels_without_names_are_said_to_be_what_they_are_taken_for(arrays, tmp_path):
    np.savez(tmp_path / "in.npz", **arrays)
    files = (tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--map", tmp_path / "map.json")
    ClassMap([[0], [1], [2]], n_source=3).save(tmp_path / "map.json")
    numbered = run(*files)
    assert numbered.stderr.startswith("labels are taken for numbers of targets: IN does not name")
    assert "accuracy" in numbered.stdout
    ClassMap({"cow": [2], "cat": [0], "dog": [1]}, n_source=3).save(tmp_path / "map.json")
    named = run(*files)
    assert named.exit_code == 0
    assert named.stderr.startswith("labels are not used: labels must have names of classes beside")
    assert "accuracy" not in named.stdout
    np.savez(tmp_path / "in.npz", **arrays, classes=["cat", "dog", "cow"])
    assert run(*files).stderr == ""
    with np.load(tmp_path / "out.npz") as found:
        right = np.array(["cat", "dog", "cow"])[arrays["labels"]]
        assert np.array_equal(found["classes"][found["labels"]], right)


@pytest.mark.parametrize("classes", [np.arange(3), np.array(["a", None]), np.eye(2).astype(str)])
def test_classes_that_are_no_names_are_not_read(arrays, tmp_path, classes):
    np.savez(tmp_path / "in.npz", **arrays, classes=classes)
    assert read_arrays(tmp_path / "in.npz")[1] == {}


@pytest.mark.parametrize("name", ["logits", "probs"])
def test_a_few_rows_are_pooled_at_a_time(arrays, tmp_path, monkeypatch, name):
    classes = ClassMap({"a": [0, 2], "b": [1]}, n_source=3)
    classes.save(tmp_path / "map.json")
    given = arrays["logits"] if name == "logits" else softmax(arrays["logits"])
    np.savez(tmp_path / "in.npz", **{"features": arrays["features"], name: given})
    whole = read(tmp_path / "in.npz", tmp_path / "map.json").probs
    monkeypatch.setattr("lametta.cli._predictions._ENTRIES", 13)
    sizes = []
    monkeypatch.setattr(ClassMap, f"pool_{name}", counted(getattr(ClassMap, f"pool_{name}"), sizes))
    assert np.array_equal(read(tmp_path / "in.npz", tmp_path / "map.json").probs, whole)
    assert sizes == [3] * 13 + [1]


def counted(pool, sizes):
    def counts(classes, x):
        sizes.append(len(x))
        return pool(classes, x)

    return counts


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("meant", "name"), [("groups", "group"), ("groups", "Groups"), ("labels", "lables")]
)
def test_a_misspelt_array_is_refused(arrays, tmp_path, meant, name, suffix):
    """Without its groups, a file's videos would be mixed."""
    given = {name if key == meant else key: x for key, x in arrays.items()}
    path = tmp_path / f"in{suffix}"
    if suffix == ".npz":
        np.savez(path, **given)
    else:
        write_bank(path, given, {"classes": CLASSES})
    result = run(path, "-o", tmp_path / "out.npz")
    assert result.exit_code == 2
    names = "features, logits, probs, labels, groups, keys, prototypes, bias"
    message = f"names {names}, got {name!r} in {path}"
    assert f"{message}; did you mean {meant!r}?" in result.stderr
    assert not (tmp_path / "out.npz").exists()
    with pytest.raises(lametta.LamettaError, match=f"path must .* did you mean {meant!r}"):
        Bank.open(path)


def test_arrays_that_are_not_used_are_named(arrays, tmp_path):
    more = {"video": arrays["groups"], "label": arrays["labels"], "scores": arrays["logits"]}
    np.savez(tmp_path / "in.npz", **arrays | more)
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0
    assert result.stderr.startswith("not used of IN: video, label, scores;")
    again = run(tmp_path / "out.npz", "-o", tmp_path / "again.npz")  # has before, after, confidence
    assert again.stderr == ""


@pytest.mark.parametrize("name", ["logits", "probs"])
def test_one_output_is_no_class_of_several(name, tmp_path):
    """Its softmax would be 1 whatever comes."""
    np.savez(tmp_path / "in.npz", **{"features": np.ones((9, 2)), name: np.ones((9, 1))})
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 2
    assert f"{name} of IN must have a column for each of two classes or more" in result.stderr
    assert not (tmp_path / "out.npz").exists()


def hang(seconds=20):
    """End the test, rather than wait for a pipe that nobody writes to."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a pipe"))
    signal.alarm(seconds)


@pytest.fixture
def not_for_ever():
    before = signal.getsignal(signal.SIGALRM)
    hang()
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("not_for_ever")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_pipes_and_devices_are_no_predictions(bank, tmp_path, kind, suffix):
    given = tmp_path / f"in{suffix}"
    if kind == "pipe":
        os.mkfifo(given)
    elif kind == "device":
        given.symlink_to("/dev/zero")
    else:
        given.mkdir()
    what = "a folder" if kind == "folder" else "a pipe or device"
    for arguments, name in (
        ((given,), "IN"),
        ((bank, "--map", given), "--map"),
    ):
        result = run(*arguments, "-o", tmp_path / "out.npz")
        assert result.exit_code == 2
        said = " ".join(result.output.split())
        assert f"{name} must be a file, got" in said
        assert f"which is {what}" in said


def test_a_bomb_is_not_read(arrays, tmp_path, monkeypatch):
    """A file of some kilobytes whose arrays are larger than memory."""
    zeros = np.zeros((20_000, 3), np.float32)
    np.savez_compressed(tmp_path / "in.npz", features=zeros, logits=zeros, other=np.zeros(10**6))
    assert (tmp_path / "in.npz").stat().st_size < 20_000
    assert read_arrays(tmp_path / "in.npz")[0]["features"].shape == zeros.shape
    monkeypatch.setattr(bank_module, "memory_limit", lambda: 400_000)
    monkeypatch.setattr(bank_module, "_member", lambda *_: pytest.fail("it reads an array"))
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 2
    assert "and there is memory for 4e+05" in " ".join(result.output.split())


def test_what_a_killed_run_left_is_deleted_by_the_next(bank, tmp_path):
    (tmp_path / ".lametta-0123456789abcdef.tmp").write_bytes(b"half a file")
    (tmp_path / "mine.tmp").write_bytes(b"mine")
    with atomic_write(tmp_path / "another") as in_use:
        in_use.write_bytes(b"of a run that goes on")
        assert run(bank, "-o", tmp_path / "out.npz").exit_code == 0
    assert (tmp_path / "another").read_bytes() == b"of a run that goes on"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"another", "mine.tmp", "out.npz", bank.name}


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_writes_leaves_no_more_than_one(bank, tmp_path):
    code = "import sys, time; from lametta.cli import _predictions as p;"
    code += "p._write_csv = lambda path, _: (path.write_text('half'), print('there', flush=True),"
    code += "time.sleep(60)); from lametta.cli import app; app()"
    program = processes.Program("-c", code, "correct", bank, "-o", tmp_path / "out.csv").start()
    end = time.monotonic() + 60
    while not (left := list(tmp_path.glob(".lametta-*"))):
        assert time.monotonic() < end
        time.sleep(0.01)
    program.close()  # as kill -9 does
    assert left[0].exists()
    assert run(bank, "-o", tmp_path / "out.csv").exit_code == 0
    assert not list(tmp_path.glob(".lametta-*"))
