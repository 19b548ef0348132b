"""Images as the input of an ONNX graph, held against the preprocessing of `lametta.torch`."""

import io
import json
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from PIL import Image

from lametta import LamettaError
from lametta.integrations.onnx import OnnxModel
from lametta.integrations.onnx import images as onnx_images
from lametta.integrations.onnx.images import ImageInput
from lametta.preprocess import Preprocess
from tests.integrations.graphs import RNG, W, node, save

W3 = RNG.normal(size=(3, 4)).astype(np.float32)
SHAPES = [(40, 60), (61, 33), (32, 32), (9, 50)]
PICTURES = [RNG.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]
NORMAL = {"size": 20, "crop": 16, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}

EXIF = Image.Exif()
EXIF[0x0112] = 6  # to be turned


def encoded(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def graph(path, shape=("n", 3, 16, 16), dtype=TensorProto.FLOAT, axes=(2, 3), **metadata):
    """Sums of each channel are the features."""
    nodes = [
        node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
        node("ReduceSum", ["c", "axes"], ["f"], keepdims=0),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    weights = {"axes": np.array(axes), "w": W3}
    return save(path, nodes, weights, x=shape, dtype=dtype, **metadata)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def reference(options, pictures=PICTURES):
    """What goes into the network, by the code for torch."""
    known = {key: tuple(x) if isinstance(x, list) else x for key, x in options.items()}
    prepare = Preprocess(resize=known.pop("size"), **known)
    return np.stack([prepare(Image.fromarray(picture)).numpy() for picture in pictures])


def tensor_of(model, x):
    return model._images(x, np.dtype(model.metadata.inputs[0].dtype))


@pytest.mark.parametrize(
    "more", [{}, {"scale": 255}, {"bgr": True}, {"interpolation": "bicubic"}, {"size": (18, 30)}]
)
def test_equal_to_torch(path, more):
    options = NORMAL | more
    model = OnnxModel(graph(path), preprocess=options)
    expected = reference(options)
    files = [encoded(picture) for picture in PICTURES]
    np.testing.assert_array_equal(tensor_of(model, files), expected)
    output = model(files)
    np.testing.assert_allclose(output.features, expected.sum(axis=(2, 3)), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(output.features @ W3, output.logits, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(model(PICTURES[:1]).features, model(files[0]).features)
    batch = np.stack([PICTURES[0]] * 2)
    np.testing.assert_array_equal(model(batch).features[1], output.features[0])
    bytes_tensor = np.array(files, dtype=object)
    np.testing.assert_array_equal(model(bytes_tensor).features, output.features)


def test_layouts(path):
    files = [encoded(picture) for picture in PICTURES]
    expected = reference(NORMAL)
    last = OnnxModel(graph(path, ("n", 16, 16, 3), axes=(1, 2)), preprocess=NORMAL)
    np.testing.assert_array_equal(tensor_of(last, files), expected.transpose(0, 2, 3, 1))
    assert last(files).features.shape == (4, 3)
    free = OnnxModel(graph(path, ("n", "a", "b", "c"), axes=(1, 2)))
    assert tensor_of(free, files).shape == (4, 3, 224, 224)
    free = OnnxModel(path, preprocess=NORMAL | {"layout": "NHWC"})
    np.testing.assert_array_equal(tensor_of(free, files), expected.transpose(0, 2, 3, 1))


def test_options_of_the_file(path):
    metadata = {f"lametta.{key}": json.dumps(value) for key, value in NORMAL.items()}
    model = OnnxModel(graph(path, **metadata))
    np.testing.assert_array_equal(tensor_of(model, PICTURES), reference(NORMAL))
    model = OnnxModel(path, preprocess={"mean": [0, 0, 0]})  # which wins
    expected = reference(NORMAL | {"mean": [0, 0, 0]})
    np.testing.assert_array_equal(tensor_of(model, PICTURES), expected)


def test_the_graph_asks_for_a_size(path):
    usual = {"size": 18, "crop": 16}  # 256 to 224 as for ImageNet
    model = OnnxModel(graph(path))
    np.testing.assert_array_equal(tensor_of(model, PICTURES), reference(usual))
    model = OnnxModel(graph(path, ("n", 3, 16, 24)), preprocess={"crop": [16, 24]})
    assert tensor_of(model, PICTURES).shape == (4, 3, 16, 24)
    with pytest.raises(LamettaError, match=r"crop must be \(16, 24\), as the graph asks, got 16"):
        OnnxModel(path, preprocess={"crop": 16})


def test_pixels_of_the_right_size_are_not_resized(path):
    model = OnnxModel(graph(path))
    pixels = RNG.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    expected = Preprocess().standardize(pixels).numpy()
    np.testing.assert_array_equal(tensor_of(model, pixels), expected)
    half = OnnxModel(graph(path, dtype=TensorProto.FLOAT16))
    np.testing.assert_array_equal(tensor_of(half, pixels), expected.astype(np.float16))


def test_a_graph_of_pixels(path):
    model = OnnxModel(graph(path, ("n", 16, 16, 3), TensorProto.UINT8, (1, 2)), preprocess=NORMAL)
    pixels = RNG.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    np.testing.assert_array_equal(model(pixels).features, pixels.sum(axis=(1, 2)))
    whole = [Preprocess(resize=20, crop=16).pixels(Image.fromarray(p)) for p in PICTURES]
    files = [encoded(picture) for picture in PICTURES]
    np.testing.assert_array_equal(model(files).features, np.sum(whole, axis=(1, 2)))


def test_rotated_and_gray_and_jpeg(path):
    model = OnnxModel(graph(path), preprocess=NORMAL)
    turned = encoded(PICTURES[0], exif=EXIF)
    upright = encoded(np.rot90(PICTURES[0], -1).copy())
    np.testing.assert_array_equal(model(turned).features, model(upright).features)
    gray = encoded(PICTURES[1][..., 0].copy())
    same = np.repeat(PICTURES[1][..., :1], 3, axis=2)
    np.testing.assert_array_equal(model(gray).features, model([same]).features)
    photo = encoded(PICTURES[2], "JPEG")
    pixels = np.array(Image.open(io.BytesIO(photo)))
    np.testing.assert_array_equal(model(photo).features, model([pixels]).features)


def test_a_line_is_not_blown_up():
    """A file of few pixels may ask for many, by their proportions."""
    prepare = ImageInput(Preprocess(resize=16, crop=16))
    line = np.zeros((1, 30_000, 3), np.uint8)
    assert prepare([line], np.dtype("float32")).shape == (1, 3, 16, 16)
    with pytest.raises(LamettaError, match="7680000 x 256 pixels after resizing"):
        ImageInput(Preprocess())([line], np.dtype("float32"))


# A PNG of 100,000 x 100,000 pixels, of which there is the header alone.
HEADER = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\r" + HEADER + struct.pack(">I", zlib.crc32(HEADER))
BOMB += encoded(PICTURES[0])[33:]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([b"no image"], "image 0: neither JPEG nor PNG"),
        ([encoded(PICTURES[0]), encoded(PICTURES[1])[:-200]], "cannot read image 1: "),
        ([encoded(PICTURES[0], "BMP")], "neither JPEG nor PNG"),
        ([encoded(PICTURES[0]), "name"], "encoded images as bytes, got str at 1"),
        ([PICTURES[0], PICTURES[0][..., :2]], r"uint8 of shape \(40, 60, 2\) at 1"),
        ([PICTURES[0][:0]], r"uint8 of shape \(0, 60, 3\) at 0"),
        (
            np.zeros((2, 3, 16, 16), np.uint8),
            r"float32 \[N, 3, 16, 16\] .* got uint8 \[2, 3, 16, 16\]",
        ),
        (np.zeros((2, 3, 16, 17), np.float32), r"'x', got float32 \[2, 3, 16, 17\]"),
        (np.zeros((3, 16, 16), np.float32), r"got float32 \[3, 16, 16\]"),
        ("net.jpg", "got <U7"),
        (None, "got object"),
        ([[1.0], [1.0, 2.0]], "got object"),
        (BOMB, "read image 0"),
    ],
)
def test_what_is_wrong_is_named(path, x, message):
    model = OnnxModel(graph(path))
    with pytest.raises(LamettaError, match=message):
        model(x)


FILES = [encoded(PICTURES[2], "PNG", exif=EXIF), encoded(PICTURES[2], "JPEG", exif=EXIF)]


@pytest.mark.slow
@given(
    file=st.sampled_from(FILES),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    share=st.floats(0, 1) | st.just(1.0),
)
def test_broken_files_of_images(file, flips, share):
    broken = bytearray(file[: int(share * len(file))])
    for place, byte in flips if broken else ():
        broken[place % len(broken)] = byte
    with suppress(LamettaError):
        batch = ImageInput(Preprocess(resize=9, crop=8))([bytes(broken)], np.dtype("float32"))
        assert batch.shape == (1, 3, 8, 8)
        assert np.isfinite(batch).all()


@pytest.mark.filterwarnings("ignore")  # Pillow's own, of the bomb
def test_too_many_pixels(path, monkeypatch):
    model = OnnxModel(graph(path))
    with pytest.raises(LamettaError, match="image 0: .*(10000000000 pixels|100000 x 100000)"):
        model(BOMB)
    monkeypatch.setattr(onnx_images, "_MOST_PIXELS", 40 * 60 - 1)
    with pytest.raises(LamettaError, match="60 x 40 pixels, too many"):
        model(encoded(PICTURES[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sise": 3}, "preprocess must be one of 'size', .* did you mean 'size'"),
        ({"size": 0}, "size must be an integer from 1 to 8192"),
        ({"size": 10**9}, "size must be an integer from 1 to 8192"),
        ({"size": [1, 2, 3]}, "size must be an integer"),
        ({"size": "16"}, "size must be an integer"),
        ({"mean": [1, 2]}, "mean must have 3 values"),
        ({"mean": "abc"}, "mean must have 3 values"),
        ({"std": [1, 0, 1]}, "std must not have a 0"),
        ({"std": [1, float("nan"), 1]}, "std must have 3"),
        ({"scale": 2}, "scale must be one of 1, 255"),
        ({"layout": "CHW"}, "layout must be one of"),
        ({"layout": []}, "layout must be one of"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
        ({"bgr": "no"}, "bgr must be True or False"),
        ({"crop": None}, "crop must be 16, as the graph asks, got None"),
    ],
)
def test_options_are_checked(path, options, message):
    with pytest.raises(LamettaError, match=message):
        OnnxModel(graph(path), preprocess=options)
    if "sise" in options:
        return
    metadata = {f"lametta.{key}": json.dumps(value) for key, value in options.items()}
    with pytest.raises(LamettaError, match=message):
        OnnxModel(graph(path, **metadata))


def test_metadata_is_json(path):
    with pytest.raises(LamettaError, match="lametta.mean in the file's metadata must be JSON"):
        OnnxModel(graph(path, **{"lametta.mean": "(0.5, 0.5, 0.5)"}))


def test_graphs_without_images(path):
    save(path, [node("MatMul", ["x", "w"], ["y"])], {"w": W})
    with pytest.raises(LamettaError, match=r"float32 \[N, 6\] .*'x', got images"):
        OnnxModel(path)([encoded(PICTURES[0])])
    with pytest.raises(LamettaError, match=r"preprocess must be left out, .* float32 \[N, 6\]"):
        OnnxModel(path, preprocess={"size": 3})
    nodes = [node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "w"], ["y"])]
    one = OnnxModel(save(path, nodes, {"w": W}, x=("n", 1, 3, 2)))
    with pytest.raises(LamettaError, match=r"float32 \[N, 1, 3, 2\]"):
        one([encoded(PICTURES[0])])


def test_images_of_several_sizes_need_a_crop(path):
    model = OnnxModel(graph(path, ("n", 3, "h", "w")), preprocess={"size": None, "crop": None})
    assert model(PICTURES[0][None]).features.shape == (1, 3)
    with pytest.raises(LamettaError, match=r"of one size .* got \(40, 60\) and \(61, 33\)"):
        model(PICTURES)
