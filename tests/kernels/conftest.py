"""Kernel tests run in processes of their own: the interpreter is chosen when triton is imported."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
if str(KERNELS) not in sys.path:
    sys.path.insert(0, str(KERNELS))  # a checkout that is not installed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    chosen = config.getoption("markexpr")
    for item in items:
        if item.get_closest_marker("interpreter") and not interpreting:
            item.add_marker(
                pytest.mark.skip("needs TRITON_INTERPRET=1 python -m pytest -m interpreter")
            )
        if item.get_closest_marker("aot") and (interpreting or "aot" not in chosen):
            item.add_marker(
                pytest.mark.skip("needs python -m pytest -m aot, without TRITON_INTERPRET")
            )


class ImaginaryHopper:
    """As much of a Triton driver as specialising and compiling a launch needs."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hashes of the kernels that host functions would launch: everything but the launch is real."""
    import triton
    from triton.runtime.driver import driver

    hashes: list[str] = []

    def compile_only(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: object, **kwargs: object) -> None:
            hashes.append(kernel.run(*args, grid=grid, warmup=True, **kwargs).hash)

        return run

    monkeypatch.setattr(triton.JITFunction, "__getitem__", compile_only)
    monkeypatch.setattr("ricci_kernels.maxsim._capability", lambda device: 90)
    monkeypatch.setattr("ricci_kernels.token_transport._INTERPRETED", True)
    monkeypatch.setattr("ricci_kernels.flow.device_limits", lambda device: (90, 132))
    monkeypatch.setattr(driver, "_active", ImaginaryHopper())
    return hashes
