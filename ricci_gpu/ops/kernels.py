"""Whether the Triton kernels of `ricci_kernels` serve a tensor, and how torch calls them."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

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


def define_kernel(
    name: str, signature: str, launch: Callable[..., Any], shapes: Callable[..., Any]
) -> None:
    """Make a launch the operator ``ricci_gpu::name``: models that call it compile and export whole.

    The launch itself refuses tensors on a CPU, except in Triton's interpreter.

    Args:
        signature: arguments and results, as `torch.library.define` takes them.
        shapes: empty results for the same arguments, from which a compiler learns their shapes.
    """
    operator = f"ricci_gpu::{name}"
    torch.library.define(operator, signature)
    torch.library.impl(operator, ("cpu", "cuda"), launch)
    torch.library.register_fake(operator, shapes)


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
