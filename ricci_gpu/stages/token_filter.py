"""Keep the chunks that receive at least their share of the query's token mass."""

from dataclasses import dataclass

import torch

from ricci_gpu.batch import QueryGraphBatch, Reason, Status
from ricci_gpu.errors import SettingError
from ricci_gpu.ops.token_transport import KEEP_TOLERANCE, token_transport
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.stages.interface import FILTERS, Filter, token_similarity


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
        if not self.temperature > 0:
            raise SettingError(f"`temperature` must be greater than 0; got {self.temperature}.")
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
        batch, maxima, token_mask = token_similarity(batch)
        batch, maxima = _set_broken_aside(batch, maxima, token_mask)
        result = token_transport(
            maxima,
            token_mask,
            batch.keep,
            temperature=self.temperature,
            steps=self.steps,
            trace=self.trace,
        )
        keep = result.share >= self.eta * (1.0 - KEEP_TOLERANCE)
        batch = batch.with_(
            score=torch.where(batch.keep, result.log_mass, -torch.inf),
            filter_value=torch.where(batch.keep, result.share, torch.nan),
            abstention=result.abstention,
            details={"plans": result.trace} if self.trace else batch.details,
        )
        return self.decide(batch, keep, result.log_mass, Reason.LOW_MASS)


def _set_broken_aside(
    batch: QueryGraphBatch, maxima: Float[Tensor, "B L K"], token_mask: Bool[Tensor, "B L"]
) -> tuple[QueryGraphBatch, Float[Tensor, "B L K"]]:
    """Drop chunks with a NaN similarity, which the soft-max would spread over the whole pool.

    When every chunk has one, the query's own tokens are broken: no chunk can be judged, all stay,
    and the maxima are replaced by ``-inf``, from which the transport concludes nothing.
    """
    broken = (torch.isnan(maxima) & token_mask[..., None]).any(dim=1) & batch.keep
    query_broken = broken.any(dim=1, keepdim=True) & (broken == batch.keep).all(dim=1, keepdim=True)
    out = broken & ~query_broken
    batch = batch.with_(
        keep=batch.keep & ~out,
        reason=torch.where(out, int(Reason.BAD_EMBEDDING), batch.reason),
        status=torch.where(broken.any(dim=1), int(Status.BAD_EMBEDDING), batch.status),
    )
    return batch, torch.where(query_broken[:, :, None], -torch.inf, maxima)
