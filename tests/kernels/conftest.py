"""Kernel tests run in processes of their own: the interpreter is chosen when triton is imported."""

import os
import sys
from pathlib import Path

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
