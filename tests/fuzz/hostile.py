"""What nobody should pass, and ways to damage what is whole."""

import copy
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

VALUES = [
    *(None, True, False, 0, -1, 1, 2, 3, 10**9, 10**30, -(10**30)),
    *(0.5, -0.0, 1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 2j),
    *("", "knn", "rbf", "mean", "3", "nan", "a+b", "python:", "python:os", "\udcff", b"knn"),
    *((), (1,), [], [1, 2], [[0], [1]], ["a"], {}, {"a": [0]}, {0: "a"}, {"kind": "iid"}, {1, 2}),
    *(np.float32(1), np.int64(3), np.bool_(True), np.longdouble(1), Decimal(1), Fraction(1, 2)),
    *(np.array(3), np.array([1, 2]), np.array(["a", "b"]), np.ones((2, 2)), np.datetime64("2020")),
    *(torch.tensor(2), torch.ones(2), object(), int, len, range(3), slice(2), Ellipsis),
    *(lambda x: x, lambda *_: None, lambda x: np.ones(3)),
]
SHAPES = [(), (0,), (4,), (0, 0), (0, 3), (4, 0), (1, 1), (1, 3), (4, 1), (4, 3), (4, 3, 2)]
TYPES = [
    *("f4", "f8", "f2", "?", "i4", "u8", "c8", "g", ">f4", ">f8", "O", "U3", "M8[s]", "V4"),
]
SPECIAL = [0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e300, 1e-300, 1e-45, 1e38]


def one_of(draw, values):
    """Draw one of these; a strategy made for them alone takes longer to make than to draw from."""
    return values[draw(st.integers(0, len(values) - 1))]


@st.composite
def arrays(draw, shapes=SHAPES):
    """An array of a shape, type and library that may be good or not."""
    shape = one_of(draw, shapes)
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.dirichlet(np.ones(max(1, shape[-1])), shape[:-1])[..., : shape[-1]] if shape else 0.5
    x = np.array(x)
    if x.size and draw(st.integers(0, 3)) == 0:
        x.flat[draw(st.integers(0, x.size - 1))] = one_of(draw, SPECIAL)
    kind = one_of(draw, TYPES[:1] * 12 + TYPES[1:2] * 12 + TYPES)
    with np.errstate(all="ignore"):
        x = x.astype("i8").astype(kind) if kind[0] in "MV" else x.astype(kind)
    return one_of(draw, FORMS[:1] * 12 + FORMS)(x)


def _tensor(x):
    return torch.tensor(x if x.dtype.str in ("<f2", "<f4", "<f8", "|b1", "<i4") else np.ones(3))


def _read_only(x):
    x.flags.writeable = False
    return x


FORMS = [
    lambda x: x,
    _read_only,
    np.asfortranarray,
    lambda x: np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x,
    lambda x: np.ma.masked_array(x, np.zeros(x.shape, bool)),
    lambda x: x.tolist(),
    lambda x: x.tobytes(),
    _tensor,
    lambda x: _tensor(x).to(torch.bfloat16),
    lambda x: _tensor(x).double().requires_grad_(),
    lambda x: _tensor(x).float().to_sparse(),
]

NAMES = [
    "",
    "a",
    "a b",
    "a/b",
    "../x",
    "[bold]x",
    "=1+1",
    "\u00fcn\u00ef \U0001f384",
    "x" * 300,
    "\n",
    "__metadata__",
]

values = st.one_of(
    st.sampled_from(VALUES),
    st.sampled_from(VALUES),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
)


def nested(depth):
    tree = []
    for _ in range(depth):
        tree = [tree]
    return tree


json_leaves = st.sampled_from(
    [
        *(
            None,
            True,
            False,
            0,
            1,
            -1,
            2,
            4,
            6,
            10**9,
            2**31,
            2**62,
            2**64,
            10**30,
            0.0,
            1.5,
            1e308,
        ),
        *("", "F32", "F64", "BF16", "F8_E4M3", "I64", "BOOL", "U8", "mean", "cat", "\ud800", "{}"),
        *([], [0, 0], [6, 3], [0, 72], [0, 10**18], [10**9, 0], [[0]], ["cat"], ["cat", "cat"]),
        *(
            {},
            {"cat": [0]},
            {"groups": [[0]]},
            {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
        ),
        {"cat": [10**9], "dog": [1]},
        [*range(3000)],
        {str(i): [i] for i in range(3000)},
    ]
) | st.integers(3, 8).map(lambda n: nested(2**n))


@st.composite
def changed(draw, tree, leaves):
    """A copy of nested dicts and lists in which something is replaced, deleted or added."""
    tree = copy.deepcopy(tree)
    at = tree
    while True:
        keys = [*at] if isinstance(at, dict) else [*range(len(at))]
        key = one_of(draw, keys) if keys else None
        inside = None if key is None else at[key]
        if isinstance(inside, dict | list) and inside and draw(st.integers(0, 4)):
            at = inside
            continue
        what = one_of(draw, ["replace"] * 4 + ["delete", "add"])
        if what == "replace" and key is not None:
            at[key] = draw(leaves)
        elif what == "delete" and key is not None:
            del at[key]
        else:
            added = inside if draw(st.booleans()) else draw(leaves)
            if isinstance(at, dict):
                at[one_of(draw, NAMES)] = added
            else:
                at.append(added)
        return tree


@st.composite
def damaged(draw, content):
    """Bytes that are cut off, flipped, doubled, or have others put in."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        what = one_of(draw, ["flip", "flip", "cut", "insert", "drop", "double"])
        if what == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "cut":
            del content[at:]
        elif what == "insert":
            content[at:at] = one_of(draw, [b"\0", b"\xff\xfe", b'"', b"{", b"[" * 9999])
        elif what == "drop":
            del content[at : at + draw(st.integers(1, 64))]
        else:
            content[at:at] = content[at : at + 64]
    return bytes(content)
