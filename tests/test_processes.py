"""The tests' own programs: they end with their test, and none starts for a test that is skipped."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import processes
from tests.conftest import DEBIAN

pytestmark = pytest.mark.slow(2)
WANTING = (
    "tests/bench/report/test_page.py::test_a_browser_shows_the_page",
    "tests/data/classes/test_wordnet.py::test_asset_is_what_the_script_makes",
    "tests/serve/test_page.py::test_a_click_through_the_page",
    "tests/serve/test_proxy.py::test_the_proxy",
    "tests/serve/test_ray.py::test_two_replicas",
    "tests/integrations/test_megadetector.py::test_what_is_written_is_valid_to_megadetectors_own_tools",
)


def test_a_program_is_python(tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(sys.argv); sys.exit('too bad')")
    done = processes.run(tmp_path / "program.py", "--option", cwd=tmp_path)
    assert done.stdout == f"{[str(tmp_path / 'program.py'), '--option']}\n"
    assert (done.returncode, done.stderr) == (1, "too bad\n")
    done = processes.run("-m", "program", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "too bad\n")
    code = "import atexit, os; atexit.register(print, 'end'); print(os.getcwd(), os.environ['A'])"
    done = processes.run("-c", code, cwd=tmp_path, env={"A": "b"})
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} b\nend\n")


def test_a_program_ends_with_its_block():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with processes.Program("-c", code) as program:
        folder, pid = Path(program._folder.name), program.pid
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.1)
        assert program.is_alive()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow(10)
def test_what_is_skipped_opens_nothing_and_says_what_to_install(tmp_path):
    """All warnings are errors, that of a socket that was left open, too."""
    environment = {**os.environ, "PATH": str(tmp_path), "WNSEARCHDIR": str(tmp_path / "nowhere")}
    (tmp_path / "megadetector.py").write_text("raise ModuleNotFoundError")  # also where it is there
    options = ("-n", "0", "-p", "no:cacheprovider", "--assert=plain")
    first = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1));"
    code = f"{first} runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
    done = processes.run("-c", code, tmp_path, *options, *WANTING, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, said, total = done.stdout.splitlines()
    names, packages = ", ".join(DEBIAN), " ".join(DEBIAN)
    want = f"6 skipped for want of {names}, megadetector-utils: "
    assert said == f"{want}apt-get install {packages}; pip install megadetector-utils"
    assert "6 skipped in" in total
