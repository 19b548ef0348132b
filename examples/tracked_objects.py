"""Tracked objects whose detector hesitates: the class of each track, frame by frame.

Two objects pass a camera. The detector calls the fox a dog now and then, and begins with a wrong
class for the deer; boxes are smoothed by ``supervision``, classes by ``lametta``.
"""

import argparse

import numpy as np
import supervision as sv

from lametta.integrations.supervision import ClassSmoother

NAMES = ["deer", "dog", "fox"]
TRUE = {1: 2, 2: 0}  # the classes of the two tracks


def detect(frame: int, rng: np.random.Generator) -> sv.Detections:
    """What a detector and a tracker say of a frame."""
    said = []
    for track, label in TRUE.items():
        is_wrong = rng.random() < 0.3 or (track == 2 and frame < 2)
        said.append((label + 1 + int(rng.integers(2))) % 3 if is_wrong else label)
    corners = np.array([[10, 10], [60, 20]]) + 2 * frame
    return sv.Detections(
        xyxy=np.hstack([corners, corners + 20]).astype(float),
        class_id=np.array(said),
        confidence=rng.uniform(0.5, 0.9, size=2),
        tracker_id=np.array(list(TRUE)),
        data={"class_name": np.array([NAMES[one] for one in said])},
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_known_args()
    rng = np.random.default_rng(0)
    boxes, classes = sv.DetectionsSmoother(length=3), ClassSmoother(len(NAMES), class_names=NAMES)
    before, after, right = 0, 0, np.array([NAMES[label] for label in TRUE.values()])
    for frame in range(20):
        detections = boxes.update_with_detections(detect(frame, rng))
        detections = classes.update_with_detections(detections)
        before += int(np.sum(np.asarray(detections.data["source_class_name"]) == right))
        after += int(np.sum(np.asarray(detections.data["class_name"]) == right))
        if frame < 4:
            print(f"frame {frame}:", *detections.data["class_name"])
    print(f"{before} of 40 labels were right, {after} are")


if __name__ == "__main__":
    main()
