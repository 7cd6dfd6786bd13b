"""Whether the Triton kernels of `ricci_kernels` serve a tensor."""

import logging
from functools import cache

import torch

from ricci_gpu.errors import missing

logger = logging.getLogger(__name__)


def on_kernels(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` lies on a CUDA device and Triton is there; says so once where it is not.

    For operators that have a torch route on the device too.
    """
    return tensor.is_cuda and _installed()


def require_kernels(what: str) -> None:
    """For operators that have no other route on the device.

    Raises:
        MissingDependencyError: Triton is not installed.
    """
    try:
        import ricci_kernels.maxsim  # noqa: F401
    except ImportError as error:
        raise missing("triton", what, "triton") from error


@cache
def _installed() -> bool:
    try:
        import ricci_kernels.maxsim  # noqa: F401
    except ImportError:
        logger.warning(
            "tensors are on a CUDA device and triton is not installed: transport and flow run on "
            'torch operations, which is slower. Install it with: pip install "ricci-gpu[triton]"'
        )
        return False
    return True
