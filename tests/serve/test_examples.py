"""The clients in examples/, against a server."""

import pytest
from PIL import Image

from tests import processes
from tests.integrations import graphs
from tests.serve.server import serving
from tests.test_programs import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton_client.py", "http_client.py"])
def test_clients(name):
    with serving() as server:
        done = processes.run(ROOT / "examples" / name, "--url", server.host)
    assert done.returncode == 0, done.stderr
    before, after = (int(part.split()[-1].rstrip("%")) for part in done.stdout.strip().split(","))
    assert after > before + 5


@pytest.mark.slow
def test_a_video(tmp_path):
    brightness = graphs.brightness(tmp_path / "net.onnx")
    folder = tmp_path / "frames"
    folder.mkdir()
    levels = [250, 240, 230, 220, 20, 225, 235, 245]
    for i, level in enumerate(levels):
        Image.new("RGB", (64, 48), (level,) * 3).save(folder / f"{i:03}.png")
    (tmp_path / "names.txt").write_text("dark\nbright\n")
    out = tmp_path / "video.webp"
    with serving("--model", brightness, "--corrector", "prudent") as server:
        done = processes.run(
            *(ROOT / "examples" / "video.py", folder, "--url", server.host, "-o", out),
            *("--classes", tmp_path / "names.txt"),
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 frames, ")
    with Image.open(out) as video:
        assert video.n_frames == 8
        assert video.size == (64, 48)
