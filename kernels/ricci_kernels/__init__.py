"""Triton kernels, and nothing else.

What belongs here: one module per kernel (the ``@triton.jit`` functions and the host function that
launches them), the launch settings (`configs`), and the compile-without-a-GPU inspection
(`inspect_aot`). The room imports torch and triton only, nothing of `ricci_gpu`; each kernel has a
plain torch twin in ``ricci_gpu/ops``. Importing the package imports neither a compiler nor a GPU:
triton is imported by the kernel modules.

Error texts are ``ValueError``: the public operations check their input before they come here.
"""
