"""MaxSim as a torch operator: gradients, compilation, export."""

import pytest
import torch

from ricci_gpu.ops.maxsim import maxsim, token_maxima
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.ops.topk import top_k

QUERY_OFFSETS = torch.tensor([0, 4, 4, 9])
DOCUMENT_OFFSETS = torch.tensor([0, 3, 3, 8, 12])
PAIR_QUERY = torch.tensor([0, 0, 2, 2, 0, -1])
PAIR_DOCUMENT = torch.tensor([0, 2, 3, 0, 3, 1])


@pytest.fixture
def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(rows, 4, generator=generator, dtype=torch.float64) for rows in (9, 12))


def _score(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    return maxsim(queries, QUERY_OFFSETS, documents, DOCUMENT_OFFSETS, PAIR_QUERY, PAIR_DOCUMENT)


def test_gradients_are_those_of_finite_differences(tokens):
    queries, documents = (each.requires_grad_() for each in tokens)
    real = slice(0, 5)  # the skipped pair scores -inf, which no difference can be taken of
    assert torch.autograd.gradcheck(lambda q, d: _score(q, d)[real], (queries, documents))


def test_gradients_equal_those_of_the_padded_definition(tokens):
    queries, documents = (each.requires_grad_() for each in tokens)
    score = (queries[4:9] @ documents[8:12].T).amax(dim=1).sum()
    expected = torch.autograd.grad(score, (queries, documents))
    ours = torch.autograd.grad(_score(queries, documents)[2], (queries, documents))
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_operators_keep_the_rules_of_torch(tokens):
    queries, documents = tokens
    arguments = (
        queries, QUERY_OFFSETS, documents, DOCUMENT_OFFSETS, PAIR_QUERY, PAIR_DOCUMENT
    )  # fmt: skip
    torch.library.opcheck(torch.ops.ricci_gpu.maxsim.default, arguments)
    torch.library.opcheck(torch.ops.ricci_gpu.token_maxima.default, (*arguments, 5))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_model_that_calls_maxsim_compiles_and_exports_whole(tokens):
    class Model(torch.nn.Module):
        def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
            return 2.0 * _score(queries, documents)

    expected = 2.0 * _score(*tokens)
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tokens), expected)
    exported = torch.export.export(Model(), tokens)
    torch.testing.assert_close(exported.module()(*tokens), expected)


def test_maxima_take_a_wider_table(tokens):
    queries, documents = tokens
    arguments = (queries, QUERY_OFFSETS, documents, DOCUMENT_OFFSETS, PAIR_QUERY, PAIR_DOCUMENT)
    wide = token_maxima(*arguments, width=8)
    assert wide.shape == (6, 8)
    assert torch.equal(wide[:, :5], token_maxima(*arguments))
    assert torch.isneginf(wide[:, 5:]).all()


def test_int8_documents_learn_nothing_and_their_queries_do(tokens):
    queries, documents = tokens
    queries = queries.float().requires_grad_()
    small, scales = (documents * 20).round().to(torch.int8), torch.full((12,), 0.05)
    pairs = PAIR_QUERY[:5], PAIR_DOCUMENT[:5]
    score = maxsim(queries, QUERY_OFFSETS, small, DOCUMENT_OFFSETS, *pairs, document_scales=scales)
    widened = maxsim(queries, QUERY_OFFSETS, small.float() / 20, DOCUMENT_OFFSETS, *pairs)
    [ours], [expected] = (torch.autograd.grad(each.sum(), queries) for each in (score, widened))
    torch.testing.assert_close(ours, expected)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_model_on_the_kernels_compiles_and_exports_whole(monkeypatch):
    """On the torch route it runs; on the kernels' route the operators stand in the graph."""

    class Model(torch.nn.Module):
        def forward(self, maxima, tokens, candidates):
            transported = token_transport(maxima, tokens, candidates)
            return transported.share, top_k(transported.log_mass, candidates, 3)[0]

    inputs = (
        torch.rand((2, 6, 4), generator=torch.Generator().manual_seed(0)),
        torch.ones((2, 6), dtype=torch.bool),
        torch.ones((2, 4), dtype=torch.bool),
    )
    expected = Model()(*inputs)
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), expected)
    torch.testing.assert_close(torch.export.export(Model(), inputs).module()(*inputs), expected)
    for module in ("token_transport", "topk"):
        monkeypatch.setattr(f"ricci_gpu.ops.{module}.on_kernels", lambda tensor: True)
    nodes = torch.export.export(Model(), inputs).graph.nodes
    called = {str(node.target) for node in nodes}
    assert {
        "ricci_gpu.token_transport_kernel.default",
        "ricci_gpu.order_kernel.default",
    } <= called
