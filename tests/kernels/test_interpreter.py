"""Every kernel in Triton's interpreter, against loops in float64.

Run with ``TRITON_INTERPRET=1 python -m pytest tests/kernels/test_interpreter.py -m interpreter``.
"""

import math
import os
from typing import Any

import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 python -m pytest -m interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton")

from ricci_kernels.maxsim import maxsim_pairs, token_maxima_pairs
from ricci_kernels.token_transport import token_transport

from ricci_gpu.ops import maxsim

pytestmark = [
    pytest.mark.interpreter,
    # numpy, which plays the GPU here, warns of log(0) and inf - inf; the hardware does not
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NAN, INF = math.nan, math.inf


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def unit_rows(rows: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator), dim=1)


class Case:
    """Queries of 5, 1, 0 and 40 tokens, documents of 70, 0, 1 and 64, and some pairs."""

    query_offsets = offsets([5, 1, 0, 40])
    document_offsets = offsets([70, 0, 1, 64])
    pairs = ((0, 0), (1, 3), (3, 2), (0, 1), (2, 0))

    def __init__(self, dim: int, dtype: torch.dtype = torch.float32) -> None:
        self.queries = unit_rows(46, dim, seed=1).to(dtype)
        self.documents = unit_rows(135, dim, seed=2).to(dtype)
        self.pair_query = torch.tensor([q for q, _ in self.pairs])
        self.pair_document = torch.tensor([d for _, d in self.pairs])

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "query_tokens": self.queries,
            "query_offsets": self.query_offsets,
            "document_tokens": self.documents,
            "document_offsets": self.document_offsets,
            "pair_query": self.pair_query,
            "pair_document": self.pair_document,
        }

    def oracle(self) -> tuple[Tensor, list[list[float]]]:
        """Loops over pairs and tokens in float64: scores, and maxima per query token."""
        scores, maxima = [], []
        for query, document in self.pairs:
            q = self.queries[self.query_offsets[query] : self.query_offsets[query + 1]].double()
            start, end = self.document_offsets[document : document + 2]
            d = self.documents[start:end].double()
            row = [max(((i * j).sum().item() for j in d), default=-INF) for i in q]
            maxima.append(row)
            scores.append(sum(row) if len(d) else -INF)
        return torch.tensor(scores, dtype=torch.float64), maxima


def score_one(query: Tensor, document: Tensor, **settings: Any) -> float:
    """The score of one query and one document."""
    scores = maxsim_pairs(
        query,
        offsets([len(query)]),
        document,
        offsets([len(document)]),
        torch.tensor([0]),
        torch.tensor([0]),
        **settings,
    )
    return scores.item()


# 16-bit products are exact in float32, so every type is held to the error of float32 sums.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [20, 96, 128, 130])
def test_scores_and_maxima_match_loops_in_float64(dim: int, dtype: torch.dtype) -> None:
    case = Case(dim, dtype)
    expected, expected_maxima = case.oracle()
    scores, maxima = token_maxima_pairs(**case.arguments, width=42)
    assert scores.dtype == maxima.dtype == torch.float32
    torch.testing.assert_close(scores.double(), expected, atol=3e-6, rtol=0)
    for row, wanted in zip(maxima.double(), expected_maxima, strict=True):
        padded = torch.tensor(wanted + [-INF] * (42 - len(wanted)), dtype=torch.float64)
        torch.testing.assert_close(row, padded, atol=5e-7, rtol=0)


def test_the_operator_widens_documents_that_were_kept_in_half_precision() -> None:
    case = Case(96, torch.float32)
    kept = case.arguments | {"document_tokens": case.documents.half()}
    wide = case.arguments | {"document_tokens": case.documents.half().float()}
    maxima = maxsim._token_maxima_cuda(*kept.values(), 42)
    assert torch.equal(maxima, token_maxima_pairs(**wide, width=42)[1])
    assert torch.equal(maxsim._maxsim_cuda(*kept.values()), maxsim_pairs(**wide))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [768, 1024])
def test_wide_embeddings(dim: int, dtype: torch.dtype) -> None:
    query, document = unit_rows(3, dim, seed=3).to(dtype), unit_rows(66, dim, seed=4).to(dtype)
    expected = (query.double() @ document.double().T).amax(1).sum().item()
    assert score_one(query, document) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_every_precision_runs(precision: str) -> None:
    """The interpreter multiplies exactly: this shows the tiles of the precision, not its error."""
    case = Case(130)
    scores = maxsim_pairs(**case.arguments, precision=precision)
    torch.testing.assert_close(scores.double(), case.oracle()[0], atol=3e-6, rtol=0)


@pytest.mark.parametrize("length", [16, 17, 64, 65, 150])
def test_queries_longer_than_a_tile(length: int) -> None:
    query, document = unit_rows(length, 32, seed=5), unit_rows(9, 32, seed=6)
    expected = (query.double() @ document.double().T).amax(1).sum().item()
    assert score_one(query, document) == pytest.approx(expected, abs=1e-5)


def test_int8_documents_with_a_scale_per_token() -> None:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(-127, 128, (70, 96), generator=generator).to(torch.int8)
    scales = torch.rand(70, generator=generator) / 127
    for dtype in (torch.float16, torch.bfloat16):
        query = unit_rows(20, 96, seed=8).to(dtype)
        documents = codes.double() * scales.double()[:, None]
        expected = (query.double() @ documents.T).amax(1).sum().item()
        score = score_one(query, codes, document_scales=scales)
        assert score == pytest.approx(expected, rel=1e-6)


def test_negative_similarities_survive() -> None:
    query = unit_rows(33, 32, seed=9)
    document = -query[:1] + 0.01 * unit_rows(65, 32, seed=10)
    query = query[:1].expand(33, 32).contiguous()
    expected = (query.double() @ document.double().T).amax(1).sum().item()
    assert expected < -30
    assert score_one(query, document) == pytest.approx(expected, abs=1e-5)


def test_empty_document_scores_below_every_real_one_and_empty_query_scores_zero() -> None:
    one, none = unit_rows(1, 32), torch.empty(0, 32)
    assert score_one(one, none) == -INF
    assert score_one(none, one) == 0.0
    assert score_one(none, none) == -INF


def test_nan_is_flagged_in_any_token_and_stays_in_its_pair() -> None:
    """Masks and sums; numpy's maximum keeps NaN anyway, test_aot.py proves the instruction."""
    for where in ("queries", "documents"):
        case = Case(96)
        getattr(case, where)[0, 3] = NAN  # first token of query 0, or of document 0
        scores, maxima = token_maxima_pairs(**case.arguments, width=40)
        reads = [q == 0 if where == "queries" else d == 0 for q, d in case.pairs]
        has_tokens = [q != 2 and d != 1 for q, d in case.pairs]
        flagged = [r and t for r, t in zip(reads, has_tokens, strict=True)]
        assert scores.isnan().tolist() == flagged
        expected = 1 if where == "queries" else 5  # a NaN document token concerns every token
        assert maxima[0].isnan().sum() == expected


def test_infinite_values_follow_ieee() -> None:
    query, document = torch.ones(2, 32), torch.ones(3, 32)
    document[1, 0] = INF
    assert score_one(query, document) == INF
    document[:, 0] = -INF
    assert score_one(query, document) == -INF
    document[0, 1] = INF  # inf - inf
    assert math.isnan(score_one(query, document))


def test_dropped_pairs_read_nothing_and_unknown_ones_are_flagged() -> None:
    case = Case(32)
    case.queries[:] = NAN
    case.documents[:] = NAN
    case.pair_query = torch.tensor([-1, 0, -1, 4, 0])
    case.pair_document = torch.tensor([0, -1, -1, 0, 99])
    scores, maxima = token_maxima_pairs(**case.arguments, width=40)
    assert scores[:3].tolist() == [-INF] * 3
    assert scores[3:].isnan().all()
    assert (maxima == -INF).all()


def test_a_query_wider_than_the_maxima_is_flagged_not_cut() -> None:
    case = Case(32)
    scores, maxima = token_maxima_pairs(**case.arguments, width=39)
    assert scores[2].isnan()  # 40 tokens
    assert maxima[2].isnan().all()
    assert scores[[0, 1]].isfinite().all()


def test_no_pairs() -> None:
    case = Case(32)
    case.pair_query = case.pair_document = torch.empty(0, dtype=torch.int64)
    assert maxsim_pairs(**case.arguments).shape == (0,)
    assert token_maxima_pairs(**case.arguments, width=7)[1].shape == (0, 7)


def test_a_score_does_not_depend_on_the_other_pairs_or_on_the_maxima() -> None:
    case = Case(96)
    together, _ = token_maxima_pairs(**case.arguments, width=40)
    for row, (query, document) in enumerate(case.pairs[:2]):
        case.pair_query, case.pair_document = torch.tensor([query]), torch.tensor([document])
        assert torch.equal(maxsim_pairs(**case.arguments), together[row : row + 1])


def test_tokens_beyond_two_to_the_31_elements() -> None:
    dim = 1024
    rows = 2**31 // dim + 2
    documents = torch.empty(rows, dim, dtype=torch.int8)  # pages never touched take no memory
    documents[-1] = 1
    scores = maxsim_pairs(
        torch.ones(1, dim, dtype=torch.float16),
        offsets([1]),
        documents,
        torch.tensor([0, rows - 1, rows]),
        torch.tensor([0]),
        torch.tensor([1]),
        document_scales=torch.ones(1).expand(rows).contiguous(),
    )
    assert scores.item() == dim


BAD_INPUT: dict[str, tuple[dict[str, Any], str]] = {
    "precision": ({"precision": "fp8"}, "must be one of ieee, tf32, tf32x3; got 'fp8'"),
    "strided": (
        {"query_tokens": torch.ones(32, 2).T},
        r"`query_tokens` must be a contiguous matrix .* Call .contiguous\(\)",
    ),
    "width": ({"query_tokens": torch.ones(2, 16)}, "same width; got 16 and 32"),
    "query type": (
        {"query_tokens": torch.ones(2, 32).double()},
        "must be float16, bfloat16 or float32; got torch.float64",
    ),
    "mixed types": (
        {"query_tokens": torch.ones(2, 32).half()},
        "nothing is cast here; got torch.float32 and torch.float16",
    ),
    "needless scales": (
        {"document_scales": torch.ones(3)},
        "`document_scales` belong to int8 documents; got torch.float32",
    ),
    "float32 queries": (
        {
            "document_tokens": torch.ones(3, 32, dtype=torch.int8),
            "document_scales": torch.ones(3),
        },
        "int8 documents need float16 or bfloat16 queries; got torch.float32",
    ),
    "short scales": (
        {
            "query_tokens": torch.ones(2, 32).half(),
            "document_tokens": torch.ones(3, 32, dtype=torch.int8),
            "document_scales": torch.ones(2),
        },
        r"float32 vector of length 3 on cpu; got torch.float32 of shape \(2,\)",
    ),
    "document device": (
        {"document_tokens": torch.ones(3, 32, device="meta")},
        "`query_tokens` is on cpu, `document_tokens` on meta",
    ),
    "offset device": (
        {"document_offsets": torch.tensor([0, 3], device="meta")},
        "`query_tokens` is on cpu, `document_offsets` on meta",
    ),
    "int32 offsets": (
        {"query_offsets": torch.tensor([0, 2], dtype=torch.int32)},
        "`query_offsets` must be a contiguous vector of int64; got torch.int32",
    ),
    "unequal pairs": ({"pair_query": torch.tensor([0, 0])}, "equally long; got 2 and 1"),
}


@pytest.mark.parametrize(("change", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_maxsim_input_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "query_tokens": torch.ones(2, 32),
        "query_offsets": offsets([2]),
        "document_tokens": torch.ones(3, 32),
        "document_offsets": offsets([3]),
        "pair_query": torch.tensor([0]),
        "pair_document": torch.tensor([0]),
    }
    with pytest.raises(ValueError, match=message):
        maxsim_pairs(**(arguments | change))


# --- token transport -------------------------------------------------------------------------


def transport_oracle(
    maxima: Tensor, mass: Tensor, real: Tensor, temperature: float, steps: int
) -> tuple[list[float], float]:
    """One query in float64, candidate by candidate; -inf for candidates that are not real."""
    chosen, tokens = real.nonzero()[:, 0].tolist(), mass.nonzero()[:, 0].tolist()
    a = maxima.double()[chosen][:, tokens]  # [c, i]
    weight = mass.double()[tokens]
    log_pi = torch.full((len(chosen),), -math.log(max(len(chosen), 1)), dtype=torch.float64)
    closed = (a == -INF).all(0)

    def shares(log_pi: Tensor) -> Tensor:
        share = torch.log_softmax(a / temperature + log_pi[:, None], dim=0)
        return torch.where(closed[None], log_pi[:, None], share)

    for _ in range(steps if tokens and chosen else 0):
        log_pi = torch.logsumexp(shares(log_pi) + weight.log()[None], dim=1)
    contrast = 0.0
    for i in range(len(tokens)):
        seen = a[:, i][a[:, i] != -INF]
        if len(seen):
            free = temperature * torch.logsumexp(a[:, i] / temperature + log_pi, dim=0)
            contrast += (weight[i] * (free - seen.mean())).item()
    log_mass = [-INF] * len(real)
    for c, value in zip(chosen, log_pi.tolist(), strict=True):
        log_mass[c] = value
    return log_mass, contrast


def pool(queries: int, candidates: int, length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cosine-like maxima with ragged tokens and candidates; the padding is NaN."""
    generator = torch.Generator().manual_seed(seed)
    maxima = torch.rand(queries, candidates, length, generator=generator) * 1.4 - 0.4
    lengths = torch.randint(1, length + 1, (queries, 1), generator=generator)
    counts = torch.randint(1, candidates + 1, (queries, 1), generator=generator)
    lengths[0], counts[0] = length, candidates
    mass = torch.where(torch.arange(length)[None] < lengths, 1.0 / lengths, 0.0)
    real = torch.arange(candidates)[None] < counts
    real = real[:, torch.randperm(candidates, generator=generator)]  # not only a prefix
    maxima[~(real[:, :, None] & (mass != 0)[:, None, :])] = NAN
    return maxima, mass, real


@pytest.mark.parametrize(
    ("candidates", "length", "temperature", "steps"),
    [
        (20, 32, 0.15, 5),
        (1, 1, 0.15, 5),
        (16, 16, 0.15, 1),
        (33, 65, 0.15, 5),
        (128, 64, 0.3, 3),
        (20, 32, 0.01, 20),
        (20, 150, 2.0, 0),
    ],
)
def test_transport_matches_float64(
    candidates: int, length: int, temperature: float, steps: int
) -> None:
    maxima, mass, real = pool(3, candidates, length, seed=candidates)
    result = token_transport(maxima, mass, real, temperature, steps)
    for b in range(3):
        log_mass, contrast = transport_oracle(maxima[b], mass[b], real[b], temperature, steps)
        # float32 logarithms: the error is relative to their size, and steps add it up
        torch.testing.assert_close(
            result.log_mass[b].double(),
            torch.tensor(log_mass, dtype=torch.float64),
            atol=5e-6 * max(steps, 1),
            rtol=2e-6,
        )
        assert result.contrast[b].item() == pytest.approx(contrast, abs=2e-6)
        threshold = -math.log(real[b].sum().item()) - 1e-5
        assert result.keep[b].tolist() == [value >= threshold for value in log_mass]
        assert result.log_mass[b].exp().sum().item() == pytest.approx(1, abs=1e-5)
        assert result.keep[b].any()


def test_transport_takes_any_strides() -> None:
    maxima, mass, real = pool(2, 20, 24, seed=11)
    token_major = maxima.transpose(1, 2).contiguous().transpose(1, 2)  # [B, L, K] in memory
    expected = token_transport(maxima, mass, real)
    for found, wanted in zip(token_transport(token_major, mass, real), expected, strict=True):
        assert torch.equal(found, wanted)


def test_padding_a_pool_with_tokens_changes_no_bit() -> None:
    maxima, mass, real = pool(2, 20, 32, seed=13)
    wide = torch.full((2, 20, 70), NAN)
    wide[:, :, :32] = maxima
    expected = token_transport(maxima, mass, real)
    found = token_transport(wide, torch.nn.functional.pad(mass, (0, 38)), real)
    for padded, wanted in zip(found, expected, strict=True):
        assert torch.equal(padded, wanted)


def test_small_masses_keep_their_order() -> None:
    """Masses of exp(-200) and exp(-400) underflow, their logarithms do not."""
    maxima = torch.tensor([1.0, 0.0, -1.0])[None, :, None]
    result = token_transport(
        maxima, torch.ones(1, 1), torch.ones(1, 3, dtype=torch.bool), temperature=0.05, steps=10
    )
    torch.testing.assert_close(result.log_mass, torch.tensor([[0.0, -200.0, -400.0]]))


@pytest.mark.parametrize("candidates", [3, 7])
def test_equal_candidates_are_all_kept(candidates: int) -> None:
    """They sit exactly on the threshold; with 3 of them, rounding falls below it."""
    generator = torch.Generator().manual_seed(3)
    maxima = torch.rand(1, 1, 9, generator=generator).expand(1, candidates, 9)
    mass, real = torch.full((1, 9), 1 / 9), torch.ones(1, candidates, dtype=torch.bool)
    result = token_transport(maxima, mass, real)
    assert result.keep.all()
    assert not token_transport(maxima, mass, real, eta=1.001).keep.any()
    assert result.contrast.item() == pytest.approx(0, abs=1e-6)


def test_transport_without_evidence_keeps_all() -> None:
    real = torch.tensor([[True, True, False]])
    all_empty = torch.full((1, 3, 2), -INF)
    for maxima, mass in (
        (all_empty, torch.full((1, 2), 0.5)),
        (torch.rand(1, 3, 2), torch.zeros(1, 2)),
    ):
        result = token_transport(maxima, mass, real)
        torch.testing.assert_close(
            result.log_mass, torch.tensor([[-math.log(2), -math.log(2), -INF]])
        )
        assert result.keep.tolist() == [[True, True, False]]
        assert result.contrast.item() == 0.0


def test_an_empty_candidate_gets_no_mass_and_no_candidates_nothing() -> None:
    maxima = torch.tensor([[[0.5, 0.2], [-INF, -INF], [0.1, 0.4]]] * 2)
    mass = torch.full((2, 2), 0.5)
    real = torch.tensor([[True] * 3, [False] * 3])
    result = token_transport(maxima, mass, real)
    log_mass, contrast = transport_oracle(maxima[0], mass[0], real[0], 0.15, 5)
    torch.testing.assert_close(result.log_mass[0], torch.tensor(log_mass))
    assert result.log_mass[0, 1] == -INF
    assert not result.keep[0, 1]
    assert result.contrast[0].item() == pytest.approx(contrast, abs=1e-6)
    assert (result.log_mass[1] == -INF).all()
    assert not result.keep[1].any()
    assert result.contrast[1] == 0.0


@pytest.mark.parametrize("bad", [NAN, INF])
def test_bad_maxima_are_flagged_in_their_query_and_drop_nothing(bad: float) -> None:
    maxima, mass, real = pool(3, 20, 16, seed=12)
    clean = token_transport(maxima, mass, real)
    row = real[1].nonzero()[0, 0]
    maxima[1, row, 0] = bad
    result = token_transport(maxima, mass, real)
    assert result.log_mass[1][real[1]].isnan().all()
    assert result.contrast[1].isnan()
    assert torch.equal(result.keep[1], real[1])
    assert torch.equal(result.log_mass[[0, 2]], clean.log_mass[[0, 2]])


def test_maxsim_feeds_transport_without_a_copy() -> None:
    """Pairs of a query side by side: the maxima are [B, K, L] by a reshape."""
    case = Case(96)
    case.pair_query = torch.tensor([0, 0, 0, 3, 3, -1])
    case.pair_document = torch.tensor([0, 2, 3, 3, 0, -1])
    _, maxima = token_maxima_pairs(**case.arguments, width=40)
    lengths = torch.tensor([[5], [40]])
    mass = torch.where(torch.arange(40)[None] < lengths, 1.0 / lengths, 0.0)
    real = case.pair_query.view(2, 3) >= 0
    result = token_transport(maxima.view(2, 3, 40), mass, real)
    for b in range(2):
        log_mass, _ = transport_oracle(maxima.view(2, 3, 40)[b], mass[b], real[b], 0.15, 5)
        torch.testing.assert_close(result.log_mass[b], torch.tensor(log_mass), atol=1e-5, rtol=0)


BAD_TRANSPORT: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": 0.0}, "`temperature` must be positive and finite; got 0.0"),
    "steps": ({"steps": -1}, "`steps` must be at least 0; got -1"),
    "eta": ({"eta": NAN}, "`eta` must be at least 0 and finite; got nan"),
    "type": ({"maxima": torch.ones(1, 3, 2).double()}, "`maxima` must be float32 of shape"),
    "candidates": (
        {"maxima": torch.ones(1, 129, 2), "candidate_mask": torch.ones(1, 129).bool()},
        "at most 128 candidates per query; got 129. Take the best 128 first",
    ),
    "mass": ({"token_mass": torch.ones(1, 3)}, r"`token_mass` must be contiguous .* \(1, 2\)"),
    "mask": (
        {"candidate_mask": torch.ones(1, 3)},
        "`candidate_mask` must be contiguous torch.bool",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_TRANSPORT.values(), ids=BAD_TRANSPORT.keys())
def test_bad_transport_input_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "maxima": torch.ones(1, 3, 2),
        "token_mass": torch.full((1, 2), 0.5),
        "candidate_mask": torch.ones(1, 3).bool(),
    }
    with pytest.raises(ValueError, match=message):
        token_transport(**(arguments | change))
