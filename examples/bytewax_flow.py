"""Many cameras in a stream processor: each keeps its memory, even if the process is killed.

Reads frames, a line of JSON each with ``camera``, ``features`` and ``probs``, and writes a line
with the corrected ``probs`` and ``label`` for each. bytewax keeps one state a camera and stores all
of them, with the places in both files, in SQLite files of a recovery folder. Killed at any moment
and started again with the same arguments, it goes on from there to the same bits. Without FRAMES
it makes up some.
"""

import argparse
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import bytewax.operators as op
import numpy as np
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from safetensors.numpy import load, save

from lametta.correctors import Prudent, advance

Frame = dict[str, Any]


def make_step() -> Callable[[bytes | None, Frame], tuple[bytes, Frame]]:
    """The corrector as a pure function: a camera's state and frame in, its state and answer out."""
    step = partial(advance, Prudent())

    def correct(state: bytes | None, frame: Frame) -> tuple[bytes, Frame]:
        features, probs = (np.array([frame[name]]) for name in ("features", "probs"))
        arrays, prediction = step({} if state is None else load(state), features, probs)
        answer = {
            "camera": frame["camera"],
            "probs": prediction.probs[0].tolist(),
            "label": int(prediction.probs[0].argmax()),
            "source_label": int(probs[0].argmax()),
        }
        # bytewax pickles what it stores: of bytes nothing but bytes can come back.
        return save(arrays), answer

    return correct


def make_flow(frames: Path, corrected: Path) -> Dataflow:
    flow = Dataflow("lametta")
    lines = op.input("frames", flow, FileSource(frames, batch_size=10))
    parsed = op.map("parse", lines, json.loads)
    by_camera = op.key_on("by_camera", parsed, lambda frame: str(frame["camera"]))
    answers = op.stateful_map("correct", by_camera, make_step())
    op.output("corrected", op.map_value("text", answers, json.dumps), FileSink(corrected))
    return flow


def make_frames(path: Path, n_cameras: int = 5, n_frames: int = 60) -> None:
    """Write frames of cameras that see the same class for a while, badly recognized."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(10, 16))
    with path.open("w") as file:
        for i in range(n_frames):
            for camera in range(n_cameras):
                label = (camera + i // 20) % len(centers)
                logits = 2.0 * (np.arange(10) == label) + rng.normal(size=10)
                frame = {
                    "camera": f"camera {camera}",
                    "features": (centers[label] + 0.3 * rng.normal(size=16)).tolist(),
                    "probs": (np.exp(logits) / np.exp(logits).sum()).tolist(),
                    "truth": label,
                }
                file.write(json.dumps(frame) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=Path, nargs="?")
    parser.add_argument("-o", "--output", type=Path, default=Path("corrected.jsonl"))
    parser.add_argument("--recovery", type=Path, help="folder of states; beside the output")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two of them")
    options = parser.parse_args()
    frames = options.frames or options.output.with_suffix(".frames.jsonl")
    if options.frames is None and not frames.exists():
        make_frames(frames)
    recovery = options.recovery or options.output.with_suffix(".recovery")
    recovery.mkdir(exist_ok=True)
    if not any(recovery.iterdir()):
        init_db_dir(recovery, 1)
    cli_main(
        make_flow(frames, options.output),
        epoch_interval=timedelta(seconds=options.every),
        recovery_config=RecoveryConfig(recovery),
    )
    with options.output.open() as file:
        answers = [json.loads(line) for line in file]
    changed = sum(answer["label"] != answer["source_label"] for answer in answers)
    cameras = len({answer["camera"] for answer in answers})
    print(f"{len(answers)} frames of {cameras} cameras, {changed} labels changed")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
