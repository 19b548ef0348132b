"""What `import lametta` costs, beside `import numpy` and Python itself; medians over processes.

python benchmarks/imports.py [--quick]
"""

import argparse
import statistics
import subprocess
import sys
import time

WHAT = ("pass", "import numpy", "import lametta")


def seconds(statement: str) -> tuple[float, float]:
    """Time on the clock and on the processor, of the statement alone."""
    code = (
        "import time; t, c = time.perf_counter(), time.process_time(); "
        f"{statement}; print(time.perf_counter() - t, time.process_time() - c)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    clock, processor = map(float, done.stdout.split())
    return clock, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    n = 1 if parser.parse_args().quick else 21
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in WHAT}
    for _ in range(n):  # in turn, so that a busy moment hits all of them
        for what in WHAT:
            times[what].append(seconds(what))
            time.sleep(0.05)
    print(f"{'ms, median (least) of ' + str(n):<28}{'clock':>16}{'processor':>16}")
    for what, pairs in times.items():
        shown = [
            f"{1e3 * statistics.median(x):.0f} ({1e3 * min(x):.0f})"
            for x in zip(*pairs, strict=True)
        ]
        print(f"{what:<28}{shown[0]:>16}{shown[1]:>16}")


if __name__ == "__main__":
    main()
