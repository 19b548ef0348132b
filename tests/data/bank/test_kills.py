"""Neither a kill at any moment nor another run at the same time changes a byte of a bank."""

import os
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[3]
CODE = """
from tests.data.bank import kill_extraction, race_extraction
kill_extraction.main({!r})
race_extraction.main({!r}, 50)
"""


@pytest.mark.slow(10)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes, and lets them race")
def test_neither_kills_nor_races_change_a_byte(tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run_python(
        CODE.format(str(tmp_path), str(tmp_path)), env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    *killed, raced = done.stdout.splitlines()
    for line in killed:  # one with broken images, one without
        calls, kills = map(int, line.split())
        assert calls > 50
        assert kills >= 4
    assert len(killed) == 2
    assert raced == "50"
