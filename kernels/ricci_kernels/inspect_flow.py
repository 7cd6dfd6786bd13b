"""Flow and exact transport kernels, compiled for a chip that is not here; see `inspect_aot`."""

import torch

from ricci_kernels.exact import exact_kernel
from ricci_kernels.exact import specialize as specialize_exact
from ricci_kernels.flow import flow_kernel, specialize
from ricci_kernels.inspect_aot import Report, compile_kernel


def compile_flow(
    capability: int, nodes: int, precision: str = "ieee", p: float = 2.0, bounds: bool = False
) -> Report:
    """The flow kernel as `ricci_flow` would launch it.

    The arguments are those of `ricci_kernels.flow.specialize`.
    """
    constants, launch = specialize(capability, nodes, p, precision, bounds)
    arguments = {
        "source": "*i64",
        "target": "*i64",
        "counts": "*i64",
        "weight": "*fp32",
        "flowed": "*fp32",
        "gap": "*fp32",
        "converged": "*i1",
        "scratch": "*fp32",
        "graphs": "i32",
        "nodes": "i32",
        "edges": "i32",
        "steps": "i32",
        "iterations": "i32",
        "step_size": "fp32",
        "alpha": "fp32",
        "p": "fp32",
        "epsilon": "fp32",
        "tolerance": "fp32",
    }
    for name in ("lower", "upper"):
        if bounds:
            arguments[name] = "*fp32"
        else:
            constants[name] = None
    return compile_kernel(flow_kernel, capability, arguments, constants, launch.options)


def compile_exact(capability: int, nodes: int, kind: torch.dtype) -> Report:
    """The exact transport kernel as `exact_transport` would launch it.

    The arguments are those of `ricci_kernels.exact.specialize`.
    """
    constants, launch = specialize_exact(capability, nodes, kind)
    values = "*fp32" if kind is torch.float32 else "*fp64"
    arguments = {
        "distance": values,
        "measure": values,
        "source": "*i64",
        "target": "*i64",
        "counts": "*i64",
        "primal": values,
        "dual": values,
        "scratch": values,
        "graphs": "i32",
        "nodes": "i32",
        "edges": "i32",
        "limit": "i32",
        "no_mass": "fp32",
    }
    return compile_kernel(exact_kernel, capability, arguments, constants, launch.options)
