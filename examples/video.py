"""A video through the server, one frame at a time, with both labels drawn into an animation.

First ``lametta serve --model classifier.onnx``, then ``python examples/video.py VIDEO``, where
VIDEO is a folder of images or, with ``pip install av``, a file. ``-o out.webp`` says where to; .gif
and .png work too. ``--classes FILE`` names the classes, one a line.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def frames(path: Path) -> Iterator[Image.Image]:
    if path.is_dir():
        for file in sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES):
            with Image.open(file) as image:
                yield image.convert("RGB")
        return
    import av

    with av.open(str(path)) as video:
        for frame in video.decode(video=0):
            yield frame.to_image()  # type: ignore[no-untyped-call]


def ask(
    client: InferenceServerClient, model: str, image: Image.Image, stream: str
) -> tuple[int, int]:
    """The source's label of a frame, and the corrected one."""
    file = io.BytesIO()
    image.save(file, "jpeg", quality=92)
    tensor = InferInput("images", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([file.getvalue()], dtype=object))
    outputs = [InferRequestedOutput(name) for name in ("source_label", "label")]
    answer = client.infer(model, [tensor], outputs=outputs, sequence_id=stream)
    return tuple(int(answer.as_numpy(name)[0]) for name in ("source_label", "label"))  # type: ignore[return-value]


def drawn(image: Image.Image, source: str, corrected: str) -> Image.Image:
    image = image.copy()
    image.thumbnail((480, 480))
    draw = ImageDraw.Draw(image, "RGBA")
    size = max(12, image.height // 16)
    font, line = ImageFont.load_default(size), 1.3 * size
    draw.rectangle((0, image.height - 2.3 * line, image.width, image.height), (0, 0, 0, 160))
    for i, (text, color) in enumerate(
        ((f"source: {source}", "#ffb3a7"), (f"corrected: {corrected}", "#b6f2c1"))
    ):
        draw.text((8, image.height - (2.15 - i) * line), text, color, font)
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description="A video through the server.")
    parser.add_argument("video", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("video.webp"))
    parser.add_argument("--url", default="127.0.0.1:8000")
    parser.add_argument("--model", default="prudent")
    parser.add_argument("--classes", type=Path)
    parser.add_argument("--fps", type=float, default=12.0)
    options = parser.parse_args()
    names = options.classes.read_text(encoding="utf-8").splitlines() if options.classes else None
    client = InferenceServerClient(options.url)
    made, changed = [], 0
    for image in frames(options.video):
        labels = ask(client, options.model, image, options.video.name)
        changed += labels[0] != labels[1]
        made.append(drawn(image, *(names[i] if names else str(i) for i in labels)))
    if not made:
        parser.error(f"VIDEO must have frames, got none in {options.video}")
    made[0].save(
        options.output,
        save_all=True,
        append_images=made[1:],
        duration=1000 / options.fps,
        loop=0,
    )
    print(f"{len(made)} frames, {changed} corrected: {options.output}")


if __name__ == "__main__":
    main()
