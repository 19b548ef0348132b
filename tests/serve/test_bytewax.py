"""A corrector in a stream processor, whose states survive a crash."""

import json
import pickletools
import runpy
import sqlite3
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from lametta.correctors import Prudent
from tests import processes

pytest.importorskip("bytewax")
EXAMPLE = Path(__file__).parents[2] / "examples" / "bytewax_flow.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def offline(frames):
    """The probabilities of each camera, which its corrector gives when it is alone."""
    alone, answers = {}, {}
    for frame in frames:
        corrector = alone.setdefault(frame["camera"], Prudent())
        features, probs = np.array([frame["features"]]), np.array([frame["probs"]])
        answer = corrector.correct(features, probs).probs[0].tolist()
        answers.setdefault(frame["camera"], []).append(answer)
    return answers


def by_camera(answers):
    found = {}
    for answer in answers:
        found.setdefault(answer["camera"], []).append(answer["probs"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 60])
def test_a_flow_that_crashes_goes_on_to_the_same_bits(example, tmp_path, seconds):
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import TestingSink, TestingSource, run_main

    example["make_frames"](tmp_path / "frames", n_cameras=3, n_frames=12)
    frames = read(tmp_path / "frames")
    end, crash = TestingSource.EOF(), TestingSource.ABORT()
    items = [*frames[:10], end, *frames[10:20], crash, *frames[20:]]
    init_db_dir(tmp_path, 1)
    answers = []
    flow = Dataflow("test")
    stream = op.key_on("key", op.input("in", flow, TestingSource(items)), lambda x: x["camera"])
    stream = op.stateful_map("correct", stream, example["make_step"]())
    op.output("out", op.map("value", stream, lambda pair: pair[1]), TestingSink(answers))
    config = RecoveryConfig(str(tmp_path))
    for _ in range(3):
        run_main(flow, epoch_interval=timedelta(seconds=seconds), recovery_config=config)
    # What was answered after the last state that was stored is answered again.
    assert len(answers) - len(frames) == (10 if seconds else 0)
    expected, got = offline(frames), by_camera(answers)
    assert got.keys() == expected.keys()
    for camera, rows in expected.items():
        once = list(dict.fromkeys(map(tuple, got[camera])))
        assert once == list(map(tuple, rows))


@pytest.mark.slow(3)
def test_a_program_that_is_killed_writes_every_frame_once(example, tmp_path):
    frames, output = tmp_path / "frames", tmp_path / "corrected"
    example["make_frames"](frames, n_cameras=5, n_frames=100)
    command = [EXAMPLE, frames, "-o", output, "--every", "0.05"]
    command += ["--recovery", tmp_path / "recovery"]
    for n_bytes in 20_000, 60_000:
        with processes.Program(*command) as program:
            while not output.exists() or output.stat().st_size < n_bytes:
                assert program.is_alive()
                time.sleep(0.001)
    assert output.stat().st_size < 120_000  # or it was killed at its end
    done = processes.run(*command)
    assert done.returncode == 0, done.stderr
    assert "500 frames of 5 cameras" in done.stdout
    assert by_camera(read(output)) == offline(read(frames))

    with sqlite3.connect(tmp_path / "recovery" / "part-0.sqlite3") as database:
        stored = [row for (row,) in database.execute("SELECT ser_change FROM snaps") if row]
    database.close()
    assert len(stored) >= 5
    for row in stored:  # numbers and bytes, of which no code can come
        names = {opcode.name for opcode, _, _ in pickletools.genops(row)}
        assert names <= {"PROTO", "FRAME", "BINBYTES", "BININT", "BININT2", "MEMOIZE", "STOP"}
