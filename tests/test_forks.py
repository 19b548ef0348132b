"""Tests in forks: what becomes of each is told, also where a process dies."""

from pathlib import Path

import pytest

from tests import processes

pytestmark = pytest.mark.slow

TESTS = """
import os

def test_passes(tmp_path):
    (tmp_path / "file").touch()

def test_fails():
    print("said before")
    assert 1 == 2
"""
DYING = """
import os

def test_before():
    pass

def test_dies():
    os._exit(0)

def test_after():
    pass
"""


def run(folder, *options):
    root = Path(__file__).parents[1]
    (folder / "pytest.ini").write_text("[pytest]")
    command = ("-m", "pytest", "-p", "tests.forks", "--forks=2", "-rA", "-c", folder / "pytest.ini")
    done = processes.run(*command, *options, folder, env={"PYTHONPATH": str(root)})
    lines = done.stdout.splitlines()
    told = {line.split()[1].partition("::")[2]: line.split()[0] for line in lines if "::" in line}
    return done, told


def test_reports_are_those_of_one_process(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    done, told = run(tmp_path)
    assert done.returncode == 1
    assert told == {"test_passes": "PASSED", "test_fails": "FAILED"}
    assert "said before" in done.stdout
    assert "assert 1 == 2" in done.stdout


def test_no_test_is_lost_with_a_process(tmp_path):
    (tmp_path / "test_it.py").write_text(DYING)
    (tmp_path / "test_other.py").write_text(TESTS)
    done, told = run(tmp_path)
    assert done.returncode == 1
    of_dying = {"test_before": "PASSED", "test_dies": "FAILED", "test_after": "FAILED"}
    assert told == {"test_passes": "PASSED", "test_fails": "FAILED", **of_dying}


def test_the_first_failure_ends_all(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS + "def test_last(): pass\n")
    done, told = run(tmp_path, "-x")
    assert done.returncode == 1
    assert told == {"test_passes": "PASSED", "test_fails": "FAILED"}
