"""An experiment with every kind of study, and the results that it might have."""

import json
import shutil
import statistics
import zlib

import numpy as np
import polars as pl
from typer.testing import CliRunner

from lametta.bench.analysis.selection import read_selection, select, write_selection
from lametta.bench.experiment import load
from lametta.cli import app

METHODS = {
    "Source": 'kind = "source"',
    "LAME": 'kind = "lame"\nparams = { affinity = "knn" }\ngrid = { k = [1, 3, 5] }',
    "TENT": 'kind = "tent"\ngrid = { lr = [0.001, 0.01, 0.1] }',
    "SHOT-IM": 'kind = "shot_im"\ngrid = { lr = [0.001, 0.1] }',
    "PseudoLabel": 'kind = "pseudo_label"\ngrid = { lr = [0.001, 0.1] }',
    "AdaBN": 'kind = "adabn"\ngrid = { momentum = [0.1, 1.0] }',
    "LAME rbf": 'kind = "lame"\nparams = { affinity = "rbf" }',
    "LAME linear": 'kind = "lame"\nparams = { affinity = "linear" }',
    "TENT fast": 'kind = "tent"\nparams = { lr = 0.1 }',
}


SIX = list(METHODS)[:6]


KERNELS = ["Source", "LAME", "LAME rbf", "LAME linear"]


MODELS = {  # name: label, architecture, training, what it is better by
    "msra": ("RN-50", "ResNet-50", "original", 0.0),
    "rn18": ("RN-18", "ResNet-18", "torchvision", -0.06),
    "rn101": ("RN-101", "ResNet-101", "original", 0.04),
    "b4": ("EN-B4", "EfficientNet-B4", "original", 0.08),
    "vit": ("ViT-B", "ViT-B/16", "original", 0.12),
    "tv": ("RN-50 torchvision", "ResNet-50", "torchvision", 0.01),
    "simclr": ("RN-50 SimCLR", "ResNet-50", "SimCLR", -0.04),
}


VALIDATION = {f"{data}-{letter}": letter for data in ("Val", "C16") for letter in "ABCD"}


TEST = {
    "V2": "A",
    "C-Test": "A",
    "V2 Zipf": "C",
    "C-Test Zipf": "C",
    "V2 sorted": "B",
    "VID": "B",
    "TAO": "B",
}


THREE = ["V2", "C-Test Zipf", "TAO"]


STUDIES = {
    "main": ("boxes", ["msra"], list(TEST), SIX, 5, [64]),
    "architectures": (
        *("radar_architectures", ["rn18", "msra", "rn101", "b4", "vit"]),
        *(THREE, SIX, 1, [16]),
    ),
    "trainings": ("radar_trainings", ["msra", "tv", "simclr"], THREE, SIX, 1, [16]),
    "batch_size": ("batch_size", ["msra"], THREE, SIX, 2, [16, 32, 64, 128]),
    "kernels": ("kernels", ["msra"], list(TEST), KERNELS, 2, [64]),
    "rates": ("curves", ["msra"], ["VID"], ["Source", "TENT", "TENT fast"], 2, [64]),
    "cost": ("runtime", ["rn18", "msra", "vit"], ["timed"], SIX[:3], 1, [64]),
}


def experiment_file(name="synthetic"):
    """An experiment with every kind of study, as TOML."""
    lines = [f'name = "{name}"', 'title = "Made-up <numbers> & all"']
    for model, (label, architecture, training, _) in MODELS.items():
        lines += [f"[models.{model}]", 'zoo = "paper:resnet18"', f'label = "{label}"']
        lines += [f'weights = "{model}.pth"']
        lines += [f'architecture = "{architecture}"', f'training = "{training}"']
    lines += ["[datasets.any]", 'reader = "embedded:digits_val"']
    for scenario, letter in (VALIDATION | TEST | {"timed": "A"}).items():
        order = "by_class" if letter in "BD" else "iid"
        prior = "zipf" if letter in "CD" else "as_is"
        lines += [f'[scenarios."{scenario}"]', 'dataset = "any"', f"limit = {len(lines)}"]
        lines += [f'order = "{order}"', f'prior = "{prior}"']
    for method, text in METHODS.items():
        lines += [f'[methods."{method}"]', text]
    lines += ["[validation]", 'models = ["msra"]', f"scenarios = {list(VALIDATION)}"]
    lines += [f"methods = {SIX}", "seeds = [0, 1]"]
    for study, (figure, models, scenarios, methods, n, sizes) in STUDIES.items():
        lines += [f"[studies.{study}]", f'figure = "{figure}"', f"models = {models}"]
        lines += [f"scenarios = {scenarios}", f"methods = {methods}"]
        lines += [f"seeds = {list(range(n))}", f"batch_sizes = {sizes}"]
    return "\n".join(lines) + "\n"


def draws(*key):
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def row(cell, sorted_stream):
    """The row that a cell might have: LAME helps on sorted streams, and fast TENT collapses."""
    stream = draws(cell.model, cell.scenario, cell.seed)
    luck = draws(cell.method, cell.config, cell.model, cell.scenario, cell.seed, cell.batch_size)
    base = 0.35 + 0.35 * draws(cell.scenario).random() + MODELS[cell.model][3]
    base += 0.01 * stream.normal()
    params, size = cell.params, cell.batch_size
    gain = {"AdaBN": -0.05 if sorted_stream else 0.01}.get(cell.method, 0.0)
    if cell.kind == "lame":
        gain = (0.025 if sorted_stream else -0.001) * params.get("k", 4) * np.log2(size) / 6
    elif "lr" in params:
        speed = 9 if cell.kind == "tent" else 2
        gain = speed * params["lr"] * base * (-0.8 if sorted_stream else 0.1)
    if cell.kind != "source":
        gain += 0.004 * luck.normal()
    n_steps = 30
    rate = np.linspace(base, base + 2 * gain, n_steps).clip(0.01, 0.99)
    hits = np.round(rate * size + stream.uniform(-0.5, 0.5, n_steps)).astype(int).clip(0, size)
    entropy = np.linspace(1.2, 1.2 if gain > -0.1 else 0.1, n_steps) + luck.random(n_steps) / 20
    forward = 0.02 + 0.3 * (MODELS[cell.model][3] + 0.06)
    adapts = cell.kind not in ("source", "lame")
    return {
        "experiment": "synthetic",
        **{name: getattr(cell, name) for name in ("method", "config", "model", "scenario")},
        "dataset": "any",
        "seed": cell.seed,
        "batch_size": size,
        "fingerprint": f"{draws(cell.scenario, cell.seed, size).integers(2**63):016x}",
        "n": size * n_steps,
        "accuracy": hits.sum() / (size * n_steps),
        "class_accuracy": hits.sum() / (size * n_steps) - 0.01,
        "nll": 2 - base,
        "ece": 0.1,
        "entropy": entropy.mean(),
        "diversity": 2.0,
        "changed": None if cell.kind == "source" else 0.125,
        "forward_time": forward if cell.live or adapts else None,
        "optimization_time": (forward * 1.4 if adapts else 0.003) if cell.live else None,
        "inference_time": forward if cell.live and adapts else None,
        "step_time": forward,
        "peak_memory": (5e8 if adapts else 2e8) if cell.live else None,
        "step_n": [size] * n_steps,
        "step_hits": hits.tolist(),
        "step_entropy": entropy.tolist(),
        "step_diversity": [2.0] * n_steps,
    }


def write_cells(folder, experiment, cells):
    (folder / "cells").mkdir(exist_ok=True)
    nullable = dict.fromkeys(
        ("changed", "forward_time", "optimization_time", "inference_time", "peak_memory"), float
    )
    orders = (experiment.scenarios[cell.scenario].order for cell in cells)
    rows = [row(cell, order == "by_class") for cell, order in zip(cells, orders, strict=True)]
    frame = pl.DataFrame(rows, infer_schema_length=None, schema_overrides=nullable)
    for cell, one in zip(cells, frame.iter_slices(1), strict=True):
        one.write_parquet(folder / "cells" / f"{cell.id}.parquet")
    return frame


def make_results(folder, name="synthetic"):
    """A folder as a run leaves it, with made-up numbers and one failure."""
    (folder / "experiment.toml").write_text(experiment_file(name))
    experiment = load(folder / "experiment.toml")
    validation = write_cells(folder, experiment, experiment.validation_cells())
    selection = select(validation, list(VALIDATION))
    write_selection(folder / "selected.toml", selection)
    selected = read_selection(folder / "selected.toml")
    write_cells(folder, experiment, experiment.test_cells(selected))
    run = {"lametta": "0.1.0", "platform": "Linux", "packages": {"torch": "2.9"}, "device": "cpu"}
    run |= {"command": "lametta run experiment.toml -o results", "started": "2026-01-02T03:04:05"}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def mean_of_means(rows, value):
    """Over seeds, and then over scenarios: by hand."""
    by_scenario = {}
    for row in rows:
        by_scenario.setdefault(row["scenario"], []).append(row[value])
    return statistics.mean(statistics.mean(values) for values in by_scenario.values())


def part_of(folder, target, keep):
    """A copy of the results with some of their cells."""
    (target / "cells").mkdir(parents=True)
    for name in ("experiment.toml", "selected.toml", "run.json"):
        shutil.copy(folder / name, target)
    for file in (folder / "cells").iterdir():
        if keep(file):
            (target / "cells" / file.name).symlink_to(file)
    return target


def invoke(*arguments):
    """Call the command, as a user does."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
