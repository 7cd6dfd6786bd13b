"""Keep the chunks that receive at least their share of the query's token mass."""

import math
from dataclasses import dataclass

import torch

from ricci_gpu.batch import QueryGraphBatch, Reason
from ricci_gpu.errors import SettingError
from ricci_gpu.ops.token_transport import KEEP_TOLERANCE, token_transport
from ricci_gpu.stages.interface import FILTERS, Filter, good_tokens


@FILTERS.register("token_transport")
@dataclass(frozen=True)
class TokenTransportFilter(Filter):
    """Entropic transport of query tokens onto the pool; gives a score as well as a mask.

    The order is by mass unless a reranker is named. Never empty at ``eta <= 1``.

    Args:
        temperature: entropic blur, in units of token similarity.
        steps: mass updates; stopping early is part of the rule.
        eta: keep a chunk with at least this many times the mean mass of its pool.
        trace: record the plan of every step for explanations.
    """

    temperature: float = 0.15
    steps: int = 5
    eta: float = 1.0
    trace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.temperature < math.inf:
            raise SettingError(
                f"`temperature` must be greater than 0 and finite; got {self.temperature}."
            )
        if self.steps < 1:
            raise SettingError(f"`steps` must be at least 1; got {self.steps}.")
        if not self.eta > 0:
            raise SettingError(f"`eta` must be greater than 0; got {self.eta}.")

    def needs(self) -> set[str]:
        return {"tokens"}

    def describe(self, reason: Reason, value: float) -> str:
        if reason == Reason.LOW_MASS:
            return f"low mass: {value:.3g} < {self.eta:g} of the mean"
        if reason == Reason.KEPT and value == value:
            return f"kept: mass {value:.3g} of the mean"
        return super().describe(reason, value)

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        batch, maxima, token_mask, judged = good_tokens(batch)
        result = token_transport(
            torch.where(judged[..., None], maxima, -torch.inf),  # nothing to conclude from
            token_mask,
            batch.keep,
            temperature=self.temperature,
            steps=self.steps,
            trace=self.trace,
        )
        # A pool of one has its mean by definition, a query without tokens gives every chunk the
        # mean: there `eta` above 1 would drop chunks that nothing speaks against.
        told = torch.isfinite(result.abstention) & (batch.keep.sum(dim=1) >= 2)
        keep = torch.where(told[:, None], result.share >= self.eta * (1.0 - KEEP_TOLERANCE), True)
        batch = batch.with_(
            score=torch.where(batch.keep, result.log_mass, -torch.inf),
            filter_value=torch.where(batch.keep, result.share, torch.nan),
            abstention=result.abstention,
            details={"plans": result.trace} if self.trace else batch.details,
        )
        return self.decide(batch, keep, result.log_mass, Reason.LOW_MASS)
