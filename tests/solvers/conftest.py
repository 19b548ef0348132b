"""Triton's interpreter, which runs kernels where there is no GPU, at three times its speed."""

import math

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
    _share_types(interpreter, monkeypatch)


def _share_types(interpreter, monkeypatch):
    """Make each type and shape of tensors once, not with every tensor, a third of what is left."""
    tl, true_dtype = interpreter.tl, interpreter._get_np_dtype
    true_block, dtypes, blocks, shapes = tl.block_type.__init__, {}, {}, {}

    def dtype_of(kind):
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = true_dtype(kind)
        return dtypes[name]

    def make_block(self, element, shape):
        key = element.name, *(getattr(size, "value", size) for size in shape)
        if key not in blocks:
            true_block(self, element, shape)
            blocks[key] = vars(self).copy()
        vars(self).update(blocks[key])

    def make_tensor(self, handle, kind):
        key = (*kind.shape,) if kind.is_block() else ()
        if key not in shapes:
            sizes = tl.tuple([tl.constexpr(size) for size in key])
            shapes[key] = tl.constexpr(math.prod(key)), sizes
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = shapes[key]

    monkeypatch.setattr(interpreter, "_get_np_dtype", dtype_of)
    monkeypatch.setattr(tl.block_type, "__init__", make_block)
    monkeypatch.setattr(tl.tensor, "__init__", make_tensor)
