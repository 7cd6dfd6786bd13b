"""What this GPU does in this run: bytes of a copy per second, operations of a matrix product."""

import torch

from benchmarks.gpu.parts import Bench, Part

COPY = "copy"
PRODUCTS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def ceilings(bench: Bench) -> None:
    half = 1 << 20 if bench.tiny else min(8 << 30, bench.free_bytes // 4)
    source = torch.zeros(half // 4, dtype=torch.float32, device=bench.device)
    target = torch.empty_like(source)
    bench.time(COPY, lambda: target.copy_(source), 2 * half / 1e9, "GB")
    del source, target
    size = 64 if bench.tiny else 8192
    for name, token_type in PRODUCTS.items():
        factor = torch.randn(size, size, device=bench.device).to(token_type)
        product = torch.empty_like(factor)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"

        def multiply(a: torch.Tensor = factor, out: torch.Tensor = product) -> None:
            torch.mm(a, a, out=out)

        bench.time(f"matrix product {name}", multiply, 2 * size**3 / 1e12, "TFLOP")


PARTS = (Part("ceilings", ceilings, 30),)
