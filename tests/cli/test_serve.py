import os
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from lametta.cli import app
from lametta.cli.serve import _bytes, _hosts, _is_local, _names, _password, _served, _tokens
from lametta.types import LamettaError
from tests.integrations.graphs import D, K, linear


def _fails(*options):
    done = CliRunner().invoke(app, ["serve", "--port", "0", "--store", "memory", *options])
    assert done.exit_code == 2
    return done.stderr


@pytest.mark.parametrize(
    ("spec", "name", "method", "options"),
    [
        ("prudent", "prudent", "prudent", {}),
        ("lame:k=3", "lame", "lame", {"k": 3}),
        ("fast=lame:k=3,weight=0.5", "fast", "lame", {"k": 3, "weight": 0.5}),
        ("both=memory+lame:scope='track'", "both", "memory+lame", {"scope": "track"}),
        ("mine=python:lametta:LAME", "mine", "python:lametta:LAME", {}),
        ("mine=python:lametta:LAME:max_iter=7", "mine", "python:lametta:LAME", {"max_iter": 7}),
    ],
)
def test_correctors_by_name(spec, name, method, options):
    served = _served([spec])
    assert list(served) == [name]
    assert (served[name].method, served[name].options) == (method, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--corrector", "lama"], "--corrector must be one of"),
        (["--corrector", "tent"], "--corrector must see outputs alone, got 'tent'"),
        (["--corrector", "lame:k=0"], "--corrector lame:k=0: k must be an integer >= 1, got 0"),
        (["--corrector", "lame:j=0"], "--corrector lame:j=0: j is no option of lame"),
        (["--corrector", "lame:k"], "--corrector must be NAME=VALUE, got 'k'"),
        (["--corrector", ""], "--corrector must be [NAME=]METHOD[:OPTION=VALUE,...], got ''"),
        (["--corrector", "a/b=lame"], "a name of letters, digits and ._+-, got 'a/b'"),
        (["--corrector", "python:lametta:LAME"], "NAME=METHOD gives one"),
        (["--corrector", "lame", "--corrector", "lame:k=3"], "got 'lame' twice"),
        (["--host", "0.0.0.0"], "--token-file must be given where others can reach the server"),
        (["--max-body", "many"], "--max-body must be bytes such as 512M or 2G, got 'many'"),
        (["--max-head", "0"], "--max-head must be bytes such as 512M or 2G, got '0'"),
        (["--allow-host", "a:80"], "--allow-host must be a name without a port, or *.NAME, got"),
        (["--allow-host", "*.*.x"], "--allow-host must be a name without a port, or *.NAME, got"),
        (["--memory", "0"], "--memory must be bytes such as 512M or 2G, got '0'"),
        (["--store", "ftp://x"], "--store must be memory, a folder or redis://HOST"),
        (["--model", "nothing.onnx"], "nothing.onnx"),
        (["--token-file", "nothing.txt"], "nothing.txt"),
        (["--features", "f"], "--features must come with --model, got 'f' without it"),
        (["--logits", "z"], "--logits must come with --model, got 'z' without it"),
        (["--names", "nothing.txt"], "nothing.txt"),
        (["--replicas", "3"], "--replicas must come with --ray, got 3 without it"),
        (["--durable", "always"], "--durable must be for a folder, got 'always' with another"),
        (["--store-password-file", __file__], "--store-password-file must be for redis://HOST"),
        (["--log-level", "loud"], "--log-level must be one of 'debug', 'info'"),
    ],
)
def test_what_cannot_be_served(options, message):
    assert message in " ".join(_fails(*options).split())


def test_tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("\n  a-token-of-enough-letters \n\nanother-token-too\n")
    assert _tokens(path) == ("a-token-of-enough-letters", "another-token-too")
    letters = "a-token-of-enough-l\u00e4tters"
    for content in (b"", b"short\n", letters.encode(), letters.encode("latin-1")):
        path.write_bytes(content)
        with pytest.raises(LamettaError, match="--token-file must have tokens of 16 ASCII"):
            _tokens(path)


def test_bytes():
    texts = "1", "2k", "512M", "1GB", " 3t "
    assert [_bytes("--x", text) for text in texts] == [1, 2048, 2**29, 2**30, 3 * 2**40]


def test_local_addresses():
    hosts = "127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "example"
    assert [_is_local(host) for host in hosts] == [True] * 4 + [False] * 4


def test_names_of_this_machine_where_nobody_else_reaches_it():
    own = ("127.0.0.1", "[::1]", "localhost")
    assert _hosts("127.0.0.1", []) == _hosts("::1", []) == own
    assert _hosts("127.0.0.1", ["*.example.com"]) == (*own, "*.example.com")
    assert "127.0.0.7" in _hosts("127.0.0.7", [])
    assert _hosts("0.0.0.0", []) == ()  # any: there are tokens
    assert _hosts("0.0.0.0", ["a.example.com"]) == ("a.example.com",)


def test_names_of_classes(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("red panda\n Ara\u00f1a \r\n\n", encoding="utf-8")
    assert _names(path) == ("red panda", "Ara\u00f1a")
    for content, message in (
        (b"", "must be a text file with a class in each line, got "),
        (b"a\n\nb\n", "names.txt, line 2 of which is empty"),
        (b"\xff\xfe", "as a text file in UTF-8: "),
    ):
        path.write_bytes(content)
        with pytest.raises(LamettaError, match=message):
            _names(path)
    (tmp_path / "names.json").write_text('["a",\n"b"]')
    with pytest.raises(LamettaError, match="a class in each line, got .*names.json"):
        _names(tmp_path / "names.json")


def test_names_come_with_the_model_or_its_bank_unless_they_are_given(tmp_path, monkeypatch):
    def named(*options):
        method = "t3a" if "--prototypes" in options else "prudent"
        options = ["--corrector", method, *options]
        done = CliRunner().invoke(app, ["serve", "--store", "memory", *map(str, options)])
        assert done.exit_code == 0, done.stderr
        client, inputs = TestClient(served.pop(), "http://127.0.0.1"), []
        for name, shape in (("features", [1, D]), ("probs", [1, K]), ("x", [1, D])):
            if (name == "x") == ("--model" in options):
                data = np.full(shape, 1 / K).ravel().tolist()
                inputs.append({"name": name, "shape": shape, "datatype": "FP32", "data": data})
        answer = client.post(f"/v2/models/{method}/infer", json={"inputs": inputs}).json()
        found = {output["name"]: output["data"] for output in answer["outputs"]}
        (label,), (name,) = found["label"], found["label_name"]
        return name.removesuffix(f" {label}")

    served = []
    monkeypatch.setattr("lametta.serve.server.run", lambda app, *_: served.append(app))
    model, bank, given = (tmp_path / name for name in ("net.onnx", "bank.npz", "names.txt"))
    own, others = ([f"{kind} {i}" for i in range(K)] for kind in ("own", "other"))
    linear(model, names=str(dict(enumerate(own))))  # as Ultralytics writes them
    outputs = {"features": np.ones((2, D)), "logits": np.ones((2, K))}
    np.savez(bank, prototypes=np.eye(K, D), bias=np.zeros(K), classes=own, **outputs)
    given.write_text("\n".join(others))
    for options in (["--model", model], ["--prototypes", bank]):
        assert named(*options) == "own"
        assert named(*options, "--names", given) == "other"
    assert named("--names", bank) == named("--model", model, "--names", bank) == "own"
    np.savez(bank, prototypes=np.eye(K, D), classes=own[:3], **outputs)  # of the labels, say
    with pytest.raises(KeyError, match="label_name"):
        named("--prototypes", bank)
    with pytest.raises(LamettaError, match="a bank that names its classes, got .* without"):
        _names(bank)


def test_the_password_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "password"
    path.write_text("secret of a file\n")
    monkeypatch.setenv("LAMETTA_STORE_PASSWORD", "secret of the environment")
    assert _password(path, "redis://here") == "secret of a file"
    assert _password(None, "redis://here") == "secret of the environment"
    assert _password(None, "streams") is None
    path.write_text("\n")
    with pytest.raises(LamettaError, match="--store-password-file must have a password, got"):
        _password(path, "redis://here")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with a name")
def test_files_are_no_pipes(tmp_path):
    """A pipe that nobody writes to would be waited for, and a device read for ever."""
    os.mkfifo(tmp_path / "pipe")
    for given in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (_tokens, _names, lambda path: _password(path, "redis://127.0.0.1")):
            with pytest.raises(LamettaError, match="must be a file, got .*, which is a pipe"):
                read(given)
