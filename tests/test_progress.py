"""Bars of ``progress=True``: on the error stream, and to the end."""

import numpy as np

from lametta import Output
from lametta._progress import bars, told
from lametta.data.bank import extract
from lametta.data.dataset import arrays


def test_a_bar_goes_to_the_error_stream(capsys, tmp_path):
    data = arrays(np.eye(6), range(6))
    path = tmp_path / "bank.safetensors"
    extract(lambda x: Output(x, x), data, None, path, batch_size=4, workers=0, progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "6/6" in printed.err
    assert path.name in printed.err


def test_phases_have_bars_of_their_own(capsys):
    with bars() as show:
        show(1, 2, "validation")
        show(3, 3, "test")
    printed = capsys.readouterr().err
    assert "1/2" in printed
    assert "3/3" in printed


def test_a_function_is_told_itself():
    seen = []
    for progress in (lambda *counts: seen.append(counts), None, False):
        with told(progress, "reading") as report:
            report(1, 2)
    assert seen == [(1, 2)]
