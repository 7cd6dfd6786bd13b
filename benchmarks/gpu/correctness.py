"""Every kernel on the device against float64: MaxSim in every data type, and token transport."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.parts import Bench, Part, interpreted
from ricci_gpu.ops import token_transport as reference
from ricci_gpu.ops.maxsim import maxsim as maxsim_operator


class Kind(NamedTuple):
    """A data type of MaxSim; ``bound`` of the error of one token's maximum of unit vectors."""

    token_type: torch.dtype
    precision: str = "ieee"
    scaled: bool = False
    bound: float = 5e-6


# Elements, or a place beyond them, that no 32-bit integer can count.
FAR = 2**32

# 16-bit products are exact in float32. tf32 keeps ten bits of both factors.
KINDS = {
    "fp16": Kind(torch.float16),
    "bf16": Kind(torch.bfloat16),
    "fp32 ieee": Kind(torch.float32, "ieee", bound=2e-6),
    "fp32 tf32x3": Kind(torch.float32, "tf32x3"),
    "fp32 tf32": Kind(torch.float32, "tf32", bound=2e-3),
    "int8": Kind(torch.float16, scaled=True),
}


def kernels_run(bench: Bench, name: str) -> bool:
    """Whether Triton kernels can run here; says so where they cannot."""
    if bench.on_gpu or interpreted():
        return True
    bench.skip(f"correctness of {name}", "it needs a GPU, or TRITON_INTERPRET=1 and triton")
    return False


def largest_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference; infinite where one is infinite or NaN and the other is not the same."""
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    error = torch.where(same, 0.0, (found - expected).abs())
    return float(error.nan_to_num(nan=math.inf).max()) if error.numel() else 0.0


class Case:
    """Ragged queries and documents, one of each empty, and all pairs, some dropped or unknown."""

    def __init__(self, bench: Bench, kind: Kind, dim: int, seed: int = 0) -> None:
        generator = bench.generator(seed)
        query_lengths = [5, 1, 0, 19] if bench.tiny else [5, 1, 0, 40, 32, 100]
        document_lengths = [7, 0, 1, 66] if bench.tiny else [70, 0, 1, 64, 180, 300, 8000]
        self.query_offsets = offsets(query_lengths, bench.device)
        self.document_offsets = offsets(document_lengths, bench.device)
        self.queries = unit_rows(sum(query_lengths), dim, generator).to(kind.token_type)
        documents = unit_rows(sum(document_lengths), dim, generator)
        self.scales: Tensor | None = None
        if kind.scaled:
            self.scales = documents.abs().amax(dim=1) / 127
            self.documents = (documents / self.scales[:, None]).round().to(torch.int8)
        else:
            self.documents = documents.to(kind.token_type)
        every = range(len(query_lengths)), range(len(document_lengths))
        pairs = [(q, d) for q in every[0] for d in every[1]]
        if bench.tiny:
            pairs = pairs[::2]
        pairs += [(-1, 0), (0, -1), (-1, -1), (len(query_lengths), 0), (0, 999)]
        self.pairs = pairs
        self.width = max(query_lengths)

    def arguments(self, pairs: Sequence[tuple[int, int]] | None = None) -> tuple[Tensor, ...]:
        chosen = torch.tensor(pairs or self.pairs, device=self.queries.device)
        return (
            self.queries,
            self.query_offsets,
            self.documents,
            self.document_offsets,
            chosen[:, 0].contiguous(),
            chosen[:, 1].contiguous(),
        )

    def expected(self) -> tuple[Tensor, Tensor]:
        """Scores and maxima in float64, one pair at a time."""
        documents = self.documents.double()
        if self.scales is not None:
            documents = documents * self.scales.double()[:, None]
        starts, ends = self.query_offsets.tolist(), self.document_offsets.tolist()
        scores = documents.new_full((len(self.pairs),), -math.inf)
        maxima = documents.new_full((len(self.pairs), self.width), -math.inf)
        for row, (q, d) in enumerate(self.pairs):
            if q >= len(starts) - 1 or d >= len(ends) - 1:
                scores[row] = math.nan
            elif q >= 0 and d >= 0 and ends[d + 1] > ends[d]:
                query = self.queries[starts[q] : starts[q + 1]].double()
                best = (query @ documents[ends[d] : ends[d + 1]].T).amax(dim=1)
                maxima[row, : len(best)] = best
                scores[row] = best.sum()
        return scores, maxima


def maxsim(name: str, bench: Bench) -> None:
    """One data type of MaxSim."""
    label = f"maxsim {name}"
    if not kernels_run(bench, label):
        return
    from ricci_kernels.maxsim import maxsim_pairs, token_maxima_pairs

    kind = KINDS[name]
    settings = {"precision": kind.precision}
    for dim in (130,) if bench.tiny else (96, 128, 130, 768):
        case = Case(bench, kind, dim)
        scores, maxima = token_maxima_pairs(
            *case.arguments(), case.width, document_scales=case.scales, **settings
        )
        expected, expected_maxima = case.expected()
        bench.check(
            f"{label}, dim {dim}, maxima", largest_error(maxima, expected_maxima), kind.bound
        )
        bound = kind.bound * case.width
        bench.check(f"{label}, dim {dim}, scores", largest_error(scores, expected), bound)

    case = Case(bench, kind, 32 if bench.tiny else 128, seed=1)
    call = partial(maxsim_pairs, document_scales=case.scales, **settings)
    together = call(*case.arguments())
    error = largest_error(together, case.expected()[0])
    bench.check(f"{label}, without maxima", error, kind.bound * case.width)
    rows = range(0, len(case.pairs), 5)
    alone = torch.cat([call(*case.arguments([case.pairs[row]])) for row in rows])
    differing = ~torch.isclose(alone, together[list(rows)], rtol=0, atol=0, equal_nan=True)
    bench.check(f"{label}, scores that depend on other pairs", differing.sum())

    # The first document token and the last query token; int8 has no NaN.
    if not kind.scaled:
        case.documents[0, 3] = math.nan
    case.queries[-1, 5] = math.nan
    error = largest_error(call(*case.arguments()), case.expected()[0])
    bench.check(f"{label}, NaN is flagged in its pairs only", error, kind.bound * case.width)
    if name == "fp16":
        bench.attempt(f"{label}, past 2^32 elements", partial(_far_offsets, bench, label))


def _far_offsets(bench: Bench, label: str) -> None:
    """Tokens and maxima whose place fits neither a signed nor an unsigned 32-bit integer."""
    from ricci_kernels.maxsim import maxsim_pairs, token_maxima_pairs

    dim = 128
    rows = FAR // dim + 2
    needed = 4.5 * FAR  # of the maxima, which are float32
    if not bench.on_gpu or bench.free_bytes < needed:
        return bench.skip(f"{label}, past 2^32 elements", f"needs {needed / 1e9:.0f} GB of a GPU")
    documents = torch.zeros(rows, dim, dtype=torch.float16, device=bench.device)
    documents[-1] = 1
    query = torch.ones(1, dim, dtype=torch.float16, device=bench.device)
    one = torch.tensor([0, 1], device=bench.device)
    ends = torch.tensor([0, 1, rows - 1, rows], device=bench.device)
    pair = torch.zeros(1, dtype=torch.int64, device=bench.device)
    score = maxsim_pairs(query, one, documents, ends, pair, pair + 2)
    bench.check(f"{label}, tokens past 2^32 elements", abs(score.item() - dim))
    del documents
    width = 1024
    zeros = torch.zeros(FAR // width + 2, dtype=torch.int64, device=bench.device)
    _, maxima = token_maxima_pairs(query, one, query, one, zeros, zeros, width)
    wrong = (maxima[:, 0] != dim).sum() + (maxima[::4096, 1:] != -math.inf).sum()
    bench.check(f"{label}, maxima past 2^32 elements", wrong)
    return None


def gradients(bench: Bench) -> None:
    """Of the operator, with respect to both inputs, on this device."""
    case = Case(bench, KINDS["fp32 ieee"], 32 if bench.tiny else 128, seed=2)
    pairs = [(q, d) for q, d in case.pairs if min(q, d) >= 0 and q < 4 and d < 4]
    pull = torch.randn(len(pairs), generator=bench.generator(3), device=bench.device)
    queries, starts, documents, ends, pair_query, pair_document = case.arguments(pairs)
    leaves = queries.requires_grad_(), documents.requires_grad_()
    scores = maxsim_operator(queries, starts, documents, ends, pair_query, pair_document)
    real = torch.isfinite(scores)
    found = torch.autograd.grad((scores[real] * pull[real]).sum(), leaves)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    total = exact[0].new_zeros(())
    for row, (q, d) in enumerate(pairs):
        query, document = exact[0][starts[q] : starts[q + 1]], exact[1][ends[d] : ends[d + 1]]
        if len(query) and len(document):
            total = total + (query @ document.T).amax(dim=1).sum() * pull[row].double()
    for side, gradient, wanted in zip(
        ("query", "document"), found, torch.autograd.grad(total, exact), strict=True
    ):
        error = largest_error(gradient, wanted)
        bench.check(f"maxsim gradient, {side} tokens", error, 1e-5)


def token_transport(bench: Bench) -> None:
    """Masses, contrast and decisions; flags; strides."""
    if not kernels_run(bench, "token transport"):
        return
    from ricci_kernels.token_transport import token_transport as kernel

    sizes = ((1, 1, 5), (20, 32, 5), (100, 32, 5), (128, 70, 3))
    for candidates, length, steps in sizes[:2] if bench.tiny else sizes:
        name = f"token transport, {candidates} x {length}"
        maxima, mass, real = _pool(bench, 2 if bench.tiny else 64, candidates, length)
        found = kernel(maxima, mass, real, 0.15, steps)
        exact = reference.token_transport(
            maxima.mT.double(), mass > 0, real, 0.15, steps, token_mass=mass.double()
        )
        scale = 1.0 + torch.where(real, exact.log_mass, 0.0).abs()
        error = largest_error(found.log_mass / scale, exact.log_mass / scale)
        bench.check(f"{name}, log mass (relative)", error, 3e-5)
        bench.check(f"{name}, contrast", largest_error(found.contrast, exact.abstention), 1e-5)
        keep = exact.share >= 1.0 - reference.KEEP_TOLERANCE
        # Within rounding of the threshold either decision is right.
        clear = (exact.share - 1.0 + reference.KEEP_TOLERANCE).abs() > 1e-4
        wrong = (found.keep != keep) & (clear if candidates > 1 else real) & real
        bench.check(f"{name}, decisions", wrong.sum() + (found.keep & ~real).sum())

    by_token = maxima.mT.contiguous().mT
    strided = kernel(by_token, mass, real, 0.15, steps)
    unequal = sum(int((a != b).sum()) for a, b in zip(strided, found, strict=True))
    bench.check("token transport, results that depend on strides", unequal)
    broken = maxima.clone()
    broken[1, real[1].nonzero()[0, 0], 0] = math.nan
    flagged = kernel(broken, mass, real, 0.15, steps)
    wrong = (~flagged.log_mass[1][real[1]].isnan()).sum() + (flagged.keep[1] != real[1]).sum()
    bench.check("token transport, NaN flags its query and drops nothing", wrong)
    changed = (flagged.log_mass[0] != found.log_mass[0]).sum()
    bench.check("token transport, NaN changes another query", changed)


def _pool(
    bench: Bench, queries: int, candidates: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima with NaN in the padding, uniform masses, real candidates; the first query is full."""
    generator = bench.generator(candidates)
    draw = partial(torch.randint, generator=generator, device=bench.device)
    lengths = draw(1, length + 1, (queries, 1))
    counts = draw(1, candidates + 1, (queries, 1))
    lengths[0], counts[0] = length, candidates
    maxima = torch.rand(queries, candidates, length, generator=generator, device=bench.device)
    mass = (torch.arange(length, device=bench.device) < lengths) / lengths
    real = torch.arange(candidates, device=bench.device) < counts
    maxima[~(real[:, :, None] & (mass != 0)[:, None, :])] = math.nan
    return maxima, mass, real


def offsets(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0)


def unit_rows(rows: int, dim: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(rows, dim, generator=generator, device=generator.device)
    return torch.nn.functional.normalize(drawn, dim=1)


def _maxsim_part(name: str) -> Part:
    work: Callable[[Bench], None] = partial(maxsim, name)
    return Part(f"correctness of maxsim {name}", work, 80, f"maxsim {name}")


PARTS = (
    *map(_maxsim_part, KINDS),
    Part("correctness of maxsim gradients", gradients, 60, "maxsim gradients"),
    Part("correctness of token transport", token_transport, 60, "token transport"),
)
