"""A kill at any moment changes no byte of what the next run ends in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_extraction.py")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_kill_at_any_moment_changes_no_byte(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():  # one with broken images, one without
        calls, kills = map(int, line.split())
        assert calls > 50
        assert kills >= 4
    assert len(done.stdout.splitlines()) == 2
