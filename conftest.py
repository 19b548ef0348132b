"""What has to be settled before a test imports NumPy, PyTorch or JAX."""

import os
from importlib.metadata import version

# Arrays are small here: threads would only wait for each other and for other workers' threads.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Nearly all of JAX's time goes into compiling what then runs once.
flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if version("jaxlib").startswith("0.10."):  # others may not know it, and would end the process
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(flags))
