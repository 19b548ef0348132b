"""Neither a kill at any moment nor another run at the same time changes a byte of a bank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(script, *arguments):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": path},
    )


@pytest.mark.slow(10)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_kill_at_any_moment_changes_no_byte(tmp_path):
    done = run("kill_extraction.py", tmp_path)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():  # one with broken images, one without
        calls, kills = map(int, line.split())
        assert calls > 50
        assert kills >= 4
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.slow(10)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="lets forked processes race")
def test_two_extractions_at_once_end_in_the_same_bytes(tmp_path):
    done = run("race_extraction.py", tmp_path, 50)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50\n"
