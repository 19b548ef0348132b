"""A camera trap's results, as MegaDetector's tools write them, corrected sequence by sequence.

A fox passes and comes back later with a moose behind it. In some images the classifier is wrong;
the other images of the sequence put that right, and everything else in the file stays as it is.
"""

import argparse
import json
import tempfile
from pathlib import Path

from lametta.correctors import Track
from lametta.integrations.megadetector import Results, correct

NAMES = {"0": "fox", "1": "dog", "2": "moose"}
IMAGES = [  # time, and how likely the classifier finds each
    ("2024-05-01 06:10:00", [0.7, 0.2, 0.1]),
    ("2024-05-01 06:10:02", [0.3, 0.6, 0.1]),
    ("2024-05-01 06:10:04", [0.8, 0.1, 0.1]),
    ("2024-05-01 19:30:00", [0.4, 0.1, 0.5]),
    ("2024-05-01 19:30:02", [0.1, 0.1, 0.8]),
    ("2024-05-01 19:30:04", [0.5, 0.1, 0.4]),
]


def image(number: int, time: str, shares: list[float]) -> dict[str, object]:
    listed = sorted(zip(NAMES, shares, strict=True), key=lambda pair: -pair[1])
    detection = {"category": "1", "conf": 0.93, "bbox": [0.1, 0.2, 0.3, 0.4]}
    detections = [{**detection, "classifications": [list(pair) for pair in listed]}]
    return {"file": f"ridge/{number:04}.jpg", "datetime": time, "detections": detections}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_known_args()
    images = [image(number, *seen) for number, seen in enumerate(IMAGES)]
    document = {"info": {"format_version": "1.4"}, "detection_categories": {"1": "animal"}}
    with tempfile.TemporaryDirectory() as folder:
        given, target = Path(folder, "detections.json"), Path(folder, "corrected.json")
        given.write_text(
            json.dumps({**document, "classification_categories": NAMES, "images": images})
        )
        results = Results.read(given)
        found = correct(results.document, Track(), gap=60)
        results.write(target, found.document)
        for one in json.loads(target.read_text())["images"]:
            (detection,) = one["detections"]
            before = detection.get("source_classifications", detection["classifications"])
            print(one["file"], NAMES[before[0][0]], "->", NAMES[detection["classifications"][0][0]])
    print(f"{found.streams} sequences, {found.changed} of {found.detections} labels changed")


if __name__ == "__main__":
    main()
