"""show_versions: what is installed, for reports of bugs."""

import os
import platform
import sys
from importlib import metadata

_PACKAGES = (
    *("numpy", "array-api-compat", "torch", "torchvision", "timm", "transformers", "jax", "cupy"),
    *("scikit-learn", "polars", "joblib", "onnx", "onnxruntime", "faiss-cpu", "triton", "ray"),
    *("typer", "rich", "safetensors", "uvicorn", "redis", "supervision", "av"),
)


def versions() -> dict[str, str]:
    """The versions of lametta, Python, the system and the packages that it may use.

    Examples
    --------
    >>> list(versions())[:4]
    ['lametta', 'python', 'system', 'cores']
    """
    found = {
        "lametta": sys.modules["lametta"].__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    if "torch" in sys.modules:  # to load it takes seconds
        torch = sys.modules["torch"]
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["gpus"] = ", ".join(gpus) or "none"
    return found


def show_versions() -> None:
    """Print what is installed, for a report of a bug.

    Examples
    --------
    >>> show_versions()  # doctest: +ELLIPSIS
    lametta           0.1.0
    python            3...
    """
    for name, version in versions().items():
        print(f"{name:<18}{version}")  # noqa: T201 - what it is for
