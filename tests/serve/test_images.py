"""Images for a network that the server runs, as clients can send them."""

import base64
import io
import json
import time

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from lametta.integrations.onnx import images
from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import RequestLimits
from tests.integrations import graphs

PATH = "/v2/models/prudent/infer"


def _file(level, kind="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (level,) * 3).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    path = graphs.brightness(tmp_path_factory.mktemp("model") / "net.onnx")
    return TestClient(ServerConfig({"prudent": CorrectorSpec("prudent", {})}, model=path).app())


def _ask(client, data, shape=None, datatype="BYTES", path=PATH):
    tensor = {"name": "image", "shape": shape or [len(data)], "datatype": datatype, "data": data}
    return client.post(path, json={"inputs": [tensor]})


def _probs(answer):
    assert answer.status_code == 200, answer.text
    return {output["name"]: output for output in answer.json()["outputs"]}["probs"]["data"]


def _ask_binary(client, *files):
    raw = b"".join(len(file).to_bytes(4, "little") + file for file in files)
    tensor = {"name": "image", "shape": [len(files)], "datatype": "BYTES"}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return client.post(PATH, content=head + raw, headers=headers)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_files_in_base64_are_those_in_binary(client, kind):
    files = [_file(20, kind), _file(230, kind)]
    said = _probs(_ask(client, [base64.b64encode(file).decode() for file in files]))
    assert said == _probs(_ask_binary(client, *files))
    assert np.reshape(said, (2, 2)).argmax(axis=1).tolist() == [0, 1]


def test_what_is_no_base64_is_refused_with_the_ways_that_work(client):
    url = "data:image/jpeg;base64," + base64.b64encode(_file(20)).decode()
    for text in ("photo.jpg", url, _file(20).decode("latin-1")):
        answer = _ask(client, [text])
        assert answer.status_code == 400
        expected = "image files must be binary BYTES or, in JSON, base64 and nothing else, got '"
        assert answer.json()["error"].startswith(expected)


def test_errors_name_what_the_client_sent(client):
    broken = _ask(client, [base64.b64encode(b"no image").decode()])
    assert broken.json()["error"] == "cannot read image 0: neither JPEG nor PNG"
    wrong = _ask(client, [0.5, 0.5], [1, 2], "FP32").json()["error"]
    assert wrong.startswith("inputs must be float32 [N, 3, 8, 8]"), wrong


def test_the_pixels_of_a_request_are_bounded(tmp_path):
    """Sixteen small files of 89 megapixels took 12 s; here they have a quarter of one."""
    path = graphs.brightness(tmp_path / "net.onnx")
    limits = ServerLimits(request=RequestLimits(2**24, 4096, 65_536, pixels=10**6))
    client = TestClient(ServerConfig({"prudent": "prudent"}, model=path, limits=limits).app())

    def square(width, height):
        file = io.BytesIO()
        Image.new("RGB", (width, height)).save(file, "PNG")
        return file.getvalue()

    assert _ask_binary(client, *3 * [square(500, 500)]).status_code == 200
    bomb = _ask_binary(client, *16 * [square(500, 500)])
    assert bomb.status_code == 400
    said = "image 4: the images have more than 1000000 pixels together"
    assert bomb.json()["error"].endswith(said)
    line = square(1, 20_000)  # resized to 9 x 180,000
    assert _ask_binary(client, line).status_code == 400
    again = _ask_binary(client, *3 * [square(500, 500)])
    assert again.status_code == 200  # each request has its own


def test_images_are_not_decoded_for_nobody(tmp_path, monkeypatch):
    """A PNG of 66 kB whose texts become 63 MiB takes a second, and hundreds fit into a request."""
    path, decode, decoded = graphs.brightness(tmp_path / "net.onnx"), images._decoded, []

    def slowly(*given):
        decoded.append(given)
        time.sleep(0.05)
        return decode(*given)

    monkeypatch.setattr(images, "_decoded", slowly)
    limits = ServerLimits(deadline=0.2)
    client = TestClient(ServerConfig({"prudent": "prudent"}, model=path, limits=limits).app())
    assert _ask_binary(client, *100 * [_file(20)]).status_code == 504
    time.sleep(0.2)
    before = len(decoded)
    time.sleep(0.3)
    assert before == len(decoded) < 100


def test_a_server_without_a_model_says_what_it_lacks():
    client = TestClient(ServerConfig({"prudent": CorrectorSpec("prudent", {})}).app())
    answer = _ask(client, [base64.b64encode(_file(20)).decode()])
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "inputs must be features, and probs or logits, got image; images are for a server that "
        "was started with --model"
    )
