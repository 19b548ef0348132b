"""Triton's interpreter, which runs kernels where there is no GPU, at twice its speed."""

import pytest


@pytest.fixture
def patched_once(monkeypatch):
    """The interpreter patches its language at every call inside a kernel, for half of its time.

    Once a kernel and module is enough, since nothing is restored before the kernel ends.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    true_patch, true_call, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, {}

    def patch(fn):
        name = fn.__globals__["__name__"]
        if name not in patched:
            patched[name] = true_patch(fn)
        return patched[name]

    def call(self, *args, **options):
        patched.clear()
        return true_call(self, *args, **options)

    monkeypatch.setattr(interpreter, "_patch_lang", patch)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)
