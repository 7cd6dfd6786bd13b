"""Which devices the workers of this machine use."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from ricci_gpu.errors import InputError

logger = logging.getLogger(__name__)

PRECISION = {"float32": "32-true", "float16": "16-true", "bfloat16": "bf16-true"}
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")  # torchrun, SLURM


def find_devices(wanted: str, threads: int, dtype: str) -> list[str]:
    """One device per worker for ``--devices auto`` or a number.

    Lightning Fabric finds them and refuses what they cannot do, also a precision; without it, torch
    is asked. On a machine without accelerators a device is a group of ``threads`` cores.

    Raises:
        InputError: neither ``auto`` nor a number, or more than there are.
    """
    if wanted != "auto" and not (wanted.isdigit() and int(wanted)):
        raise InputError(f"--devices must be `auto` or a number from 1; got `{wanted}`.")
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.utilities.exceptions import MisconfigurationException
    except ImportError:
        logger.info("Lightning is not installed: devices are found by torch alone")
        return _torch_devices(wanted, threads)
    number: int | str = int(wanted) if wanted != "auto" else "auto"
    precision: Any = PRECISION[dtype]
    try:
        fabric = Fabric(accelerator="auto", devices=number, precision=precision)
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"--devices {wanted}: {error}") from error
    if fabric.device.type == "cpu":
        return _torch_devices(wanted, threads)
    found = getattr(fabric.strategy, "parallel_devices", None) or [fabric.device]
    return [str(device) for device in found]


def own_device(configured: str, environment: Mapping[str, str] = os.environ) -> str:
    """The device of a process that torchrun, SLURM or a user started by itself.

    Where the settings leave the device open and the machine has several, a process takes the one
    of its local rank.
    """
    if configured != "auto" or torch.cuda.device_count() < 2:
        return configured
    rank = next((environment[name] for name in LOCAL_RANKS if name in environment), "0")
    return f"cuda:{int(rank) % torch.cuda.device_count()}"


def _torch_devices(wanted: str, threads: int) -> list[str]:
    there = torch.cuda.device_count()
    if there == 0:
        groups = max(1, len(os.sched_getaffinity(0)) // threads)
        return ["cpu"] * (groups if wanted == "auto" else int(wanted))
    number = there if wanted == "auto" else int(wanted)
    if number > there:
        raise InputError(f"--devices {wanted}: this machine has {there}. Ask for fewer.")
    return [f"cuda:{index}" for index in range(number)]
