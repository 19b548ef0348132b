"""The reverse proxy of deploy/ in front of a server, as nginx runs it."""

import shutil
import socket
import ssl
import subprocess
import time
from http.client import HTTPSConnection

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import installed, make_batch
from tests.serve.client import Client
from tests.serve.server import serving
from tests.serve.test_deploy import DEPLOY

pytestmark = pytest.mark.slow(3)

NAME = "cameras.example.com"
TOKEN = "a-token-of-enough-letters"


@pytest.fixture(scope="module")
def nginx():
    return installed("nginx-light")


@pytest.fixture(scope="module")
def certificate(nginx, tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    program = shutil.which("openssl") or pytest.skip("openssl is not here")
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    files = ["-keyout", folder / "key", "-out", folder / "crt"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def proxied(nginx, certificate, tmp_path_factory):
    """The port of nginx, with the file as it is but for port, paths, and a lower rate."""
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "tokens").write_text(TOKEN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--token-file", folder / "tokens", "--allow-host", NAME, "--grpc-port", 0)
    with serving(*options, "--corrector", "average") as server:
        grpc_port = next(line["grpc_port"] for line in server.log() if "grpc_port" in line)
        text = (DEPLOY / "nginx.conf").read_text()
        for said, here in (
            ("listen 443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
            ("127.0.0.1:8000", server.host),
            ("127.0.0.1:8001", f"127.0.0.1:{grpc_port}"),
            ("/etc/nginx/lametta.crt", f"{certificate}/crt"),
            ("/etc/nginx/lametta.key", f"{certificate}/key"),
            ("rate=100r/s", "rate=1r/s"),
            ("burst=200", "burst=40"),
        ):
            assert text.count(said) == 1, said
            text = text.replace(said, here)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        alone = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;"
        text = f"{alone} events {{}} http {{ access_log off; {paths} {text} }}"
        (folder / "conf").write_text(text)
        command = [nginx, "-p", folder, "-c", folder / "conf"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield port
        finally:
            process.terminate()
            process.wait()


def _wait_for(port, process):
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("nginx did not start")


class Proxied(HTTPSConnection):
    """A connection to the name, which is here."""

    def __init__(self, port, certificate):
        super().__init__(NAME, port, timeout=30)
        self.context = ssl.create_default_context(cafile=f"{certificate}/crt")

    def connect(self):
        raw = socket.create_connection(("127.0.0.1", self.port), 30)
        self.sock = self.context.wrap_socket(raw, server_hostname=NAME)

    def request(self, method, url, body=None, headers=None, **_):
        headers = {"Authorization": f"Bearer {TOKEN}", **(headers or {})}
        super().request(method, url, body, headers)


def test_the_proxy(proxied, certificate):
    client = Client(proxied)
    client._connection = connection = Proxied(proxied, certificate)
    features, probs = make_batch(6, 5, 7)
    rows = [
        client.infer(x[None], q[None], "s", model="average").probs[0]
        for x, q in zip(features, probs, strict=True)
    ]
    np.testing.assert_allclose(rows[-1], probs.mean(axis=0), atol=1e-6)

    def status(path="/v2", method="GET", body=None, **headers):
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        except OSError:
            return 0  # hung up while the body was sent
        finally:
            connection.close()

    assert status() == 200
    assert status("/metrics") == status("/v2/health/live") == 404  # for who runs it alone
    assert status(Authorization="Bearer of-another-token") == 401
    assert status(Host="evil.example") == 400
    assert status(Origin="https://evil.example") == 403
    assert status(Origin=f"https://{NAME}:{proxied}") == 200
    assert status(X="x" * 2**13) == 400
    json = {"Content-Type": "application/json"}
    assert status("/v2/models/average/infer", "POST", bytes(2**24 + 1), **json) in (413, 0)
    assert status("/v2/models/average/infer", "POST", bytes(2**20), **json) == 400
    _check_grpc(proxied, certificate, features, probs)
    # One address has its share, and then no more.
    statuses = [status() for _ in range(50)]
    assert statuses[0] == 200
    assert statuses[-1] == 429


def _check_grpc(port, certificate, features, probs):
    """The same streams by NVIDIA's gRPC client."""
    own = triton.KeepAliveOptions()
    channel = [("grpc.ssl_target_name_override", NAME), ("grpc.default_authority", NAME)]
    url, roots = f"127.0.0.1:{port}", f"{certificate}/crt"
    with triton.InferenceServerClient(
        url, ssl=True, root_certificates=roots, keepalive_options=own, channel_args=channel
    ) as client:
        inputs = []
        for name, array in (("features", features[:1]), ("probs", probs[:1])):
            inputs.append(triton.InferInput(name, array.shape, "FP64"))
            inputs[-1].set_data_from_numpy(array)
        headers = {"authorization": f"Bearer {TOKEN}"}
        result = client.infer("average", inputs, sequence_id="s", headers=headers)
        expected = np.concatenate([probs, probs[:1]]).mean(axis=0)
        np.testing.assert_allclose(result.as_numpy("probs")[0], expected, atol=1e-6)
        with pytest.raises(InferenceServerException, match="a bearer token is needed"):
            client.infer("average", inputs, sequence_id="s")
