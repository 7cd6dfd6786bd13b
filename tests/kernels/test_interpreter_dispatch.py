"""The operators of the library on their Triton route, in the interpreter, against the torch route.

Run with ``TRITON_INTERPRET=1 python -m pytest tests/kernels/test_interpreter_dispatch.py
-m interpreter``. On a CUDA device the route is chosen by the tensors; here it is chosen by hand.
"""

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 python -m pytest -m interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton")

from hypothesis import given, settings
from hypothesis import strategies as st
from ricci_kernels.order import descending_order as kernel_order

import ricci_gpu.ops.flow
import ricci_gpu.ops.token_transport
import ricci_gpu.ops.topk
import ricci_gpu.ops.transport.exact
from ricci_gpu.batch import pad_pools
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.stages.ricci_filter import RicciFilter

pytestmark = [
    pytest.mark.interpreter,
    # numpy, which plays the GPU here, warns of log(0) and inf - inf; the hardware does not
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def kernels(monkeypatch):
    """Call to send all operators to their kernels, whatever device the tensors are on."""

    def choose() -> None:
        for module in (
            ricci_gpu.ops.flow,
            ricci_gpu.ops.token_transport,
            ricci_gpu.ops.topk,
            ricci_gpu.ops.transport.exact,
        ):
            monkeypatch.setattr(module, "on_kernels", lambda tensor: True)

    return choose


def close(found: torch.Tensor, expected: torch.Tensor, atol: float) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=True)


def test_token_transport_is_the_same_on_both_routes(kernels) -> None:
    """Ragged pools and queries; an empty chunk, a pool of empty chunks, no token, no candidate."""
    generator = torch.Generator().manual_seed(0)
    maxima = torch.rand((5, 7, 6), generator=generator)
    token_mask = torch.arange(7)[None] < torch.tensor([7, 3, 0, 5, 4])[:, None]
    candidates = torch.arange(6)[None] < torch.tensor([6, 4, 3, 0, 2])[:, None]
    maxima[0, :, 2] = -INF
    maxima[4] = -INF
    maxima = torch.where(candidates[:, None, :] & token_mask[:, :, None], maxima, NAN)
    mass = torch.rand((5, 7), generator=generator)
    for given_mass in (None, mass):
        expected = token_transport(maxima, token_mask, candidates, token_mass=given_mass)
        kernels()
        found = token_transport(maxima, token_mask, candidates, token_mass=given_mass)
        close(found.log_mass, expected.log_mass, 1e-5)
        close(found.share, expected.share, 1e-5)
        close(found.abstention, expected.abstention, 1e-5)


def test_a_bad_similarity_reaches_the_masses_on_both_routes(kernels) -> None:
    maxima = torch.rand((2, 3, 4), generator=torch.Generator().manual_seed(1))
    maxima[0, 1, 2] = NAN
    everything = torch.ones((2, 3), dtype=torch.bool), torch.ones((2, 4), dtype=torch.bool)
    expected = token_transport(maxima, *everything)
    kernels()
    found = token_transport(maxima, *everything)
    assert found.log_mass[0].isnan().all()
    close(found.log_mass, expected.log_mass, 1e-5)
    close(found.abstention, expected.abstention, 1e-5)


@pytest.mark.parametrize("solver", ["sinkhorn", "exact", "checked"])
def test_the_ricci_filter_decides_alike_on_both_routes(kernels, solver: str) -> None:
    """Ragged pools, so that graphs of different size share a batch. The fused kernel works in
    float32 and is held against float64: in float32 the torch route is the less exact one."""
    generator = torch.Generator().manual_seed(2)
    counts = [4, 3, 1]
    batch = pad_pools(
        counts,
        query_emb=torch.randn((3, 8), generator=generator),
        candidate_emb=[torch.randn((count, 8), generator=generator) for count in counts],
        nodes=5,
    )
    expected = RicciFilter(solver=solver, iterations=1 if solver == "exact" else 2)(batch)
    kernels()
    precision = "float32" if solver == "sinkhorn" else "float64"
    found = RicciFilter(
        solver=solver, iterations=1 if solver == "exact" else 2, precision=precision
    )(batch)
    close(found.filter_value, expected.filter_value, 1e-5 if solver == "sinkhorn" else 1e-9)
    assert torch.equal(found.keep, expected.keep)
    assert torch.equal(found.status, expected.status)
    assert torch.equal(found.reason, expected.reason)


SCORE = st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, 0.5, 0.25])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_order_is_that_of_the_torch_route(data) -> None:
    rows, candidates = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    cells = st.lists(SCORE, min_size=rows * candidates, max_size=rows * candidates)
    flags = st.lists(st.booleans(), min_size=rows * candidates, max_size=rows * candidates)
    score = torch.tensor(data.draw(cells)).view(rows, candidates)
    mask = torch.tensor(data.draw(flags)).view(rows, candidates)
    assert torch.equal(kernel_order(score, mask), descending_order(score, mask))


def test_order_of_a_full_row_and_of_nothing() -> None:
    score = torch.randn((1, 1024), generator=torch.Generator().manual_seed(0))
    mask = torch.ones((1, 1024), dtype=torch.bool)
    assert torch.equal(kernel_order(score, mask), descending_order(score, mask))
    assert kernel_order(score[:, :0], mask[:, :0]).shape == (1, 0)
    assert kernel_order(score[:0], mask[:0]).shape == (0, 1024)


@pytest.mark.parametrize(
    ("score", "mask", "message"),
    [
        (torch.zeros(2, 3).double(), torch.zeros(2, 3).bool(), "`scores` must be contiguous"),
        (torch.zeros(2, 3), torch.zeros(2, 4).bool(), "`mask` must be contiguous torch.bool"),
        (torch.zeros(1, 1025), torch.zeros(1, 1025).bool(), "at most 1024 candidates; got 1025"),
    ],
)
def test_bad_input_of_the_order_is_refused(score, mask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_order(score, mask)


def test_the_kernels_keep_the_rules_of_torch_operators() -> None:
    """Schemas, fake implementations and shapes: what compiling and exporting rest on."""
    operators = torch.ops.ricci_gpu
    generator = torch.Generator().manual_seed(3)
    score, mask = torch.randn((2, 5), generator=generator), torch.ones((2, 5), dtype=torch.bool)
    torch.library.opcheck(operators.order_kernel.default, (score, mask))
    maxima = torch.rand((2, 5, 3), generator=generator)
    mass = torch.full((2, 3), 1 / 3)
    arguments = (maxima, mass, mask, 0.15, 2)
    torch.library.opcheck(operators.token_transport_kernel.default, arguments)
    weight = torch.ones((1, 3))
    ends = torch.tensor([[0, 0, 1]]), torch.tensor([[1, 2, 2]]), torch.tensor([3])
    settings_ = (3, 0.5, 2.0, 1.0, 1, 0.05, 2, 0.05)
    torch.library.opcheck(operators.flow_kernel.default, (weight, *ends, *settings_))
    distance = 1.0 - torch.eye(3, dtype=torch.float64)[None]
    measure = torch.full((1, 3, 3), 1 / 3, dtype=torch.float64)
    torch.library.opcheck(operators.exact_kernel.default, (distance, measure, *ends))
