"""Table 3: can a number tell a pool that holds an answer from one that does not?

Two kinds of null pools: the same queries with every relevant passage removed (and the pool filled
up from further down), and questions marked as impossible, which were asked about a passage of the
corpus that does not answer them. AUC is the share of (answerable, null) pairs in which the
answerable pool has the higher value, ties counting half. No feature has a setting that was chosen
here: all are compared as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ricci_gpu.config import Config
from ricci_gpu.corpus.files import json_rows
from ricci_gpu.corpus.judged import JudgedQueries, Part, part_of_passage
from ricci_gpu.corpus.records import Query
from ricci_gpu.evaluation.bootstrap import Difference, draws, interval
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.shapes import Float, Tensor
from ricci_gpu.stages.ricci_filter import RicciFilter

REMOVED, IMPOSSIBLE = "gold removed", "impossible"
CONTRAST_TEMPERATURE = 0.2  # of the free-energy contrast as it was proposed, with five steps


@dataclass(frozen=True)
class NullRow:
    """How one feature separates answerable pools from null pools.

    Args:
        kind: ``gold removed`` or ``impossible``.
        auc: with its interval.
        over_max_cosine: AUC minus that of the maximum cosine.
        answered_at_half: share of answerable queries still answered when half of the null ones
            are turned away.
    """

    dataset: str
    kind: str
    feature: str
    auc: Difference
    over_max_cosine: Difference
    answered_at_half: float


@dataclass(frozen=True)
class NullTable:
    """Rows, and for every feature its abstention curve by (kind, feature)."""

    rows: list[NullRow]
    curves: Mapping[tuple[str, str], list[tuple[float, float]]]


def abstention_features(config: Config, pools: JudgedPools) -> dict[str, np.ndarray]:
    """Numbers by name, one per query; higher means that an answer is more likely in the pool.

    ``default`` is what the configured filter offers, and is left out if it offers nothing.
    """
    found: dict[str, Tensor] = {}
    offered = pools.run(config.filter).abstention
    if bool(torch.isfinite(offered).all()):
        found["default"] = offered
    for name, score in (("cosine", pools.cosine), ("maxsim", pools.maxsim)):
        best = score.topk(2, dim=1).values
        found[f"max_{name}"] = best[:, 0]
        found[f"{name}_contrast"] = best[:, 0] - score.mean(dim=1)
        found[f"{name}_gap"] = best[:, 0] - best[:, 1]
    transport = token_transport(
        pools.maxima,
        pools.token_mask,
        pools.batch.candidate_mask,
        temperature=CONTRAST_TEMPERATURE,
        steps=5,
    )
    found["free_energy_contrast"] = transport.abstention
    mass = transport.log_mass.exp()
    found["mass_concentration"] = torch.special.entr(mass).sum(dim=1).neg()
    published = Config.load("ricci_filtration").filter
    assert isinstance(published, RicciFilter)
    for rule in ("ge", "le"):
        result = pools.run(replace(published, rule=rule))
        length = torch.nan_to_num(result.filter_value, nan=torch.inf)
        found[f"ricci_{rule}_dropped"] = -result.keep.sum(dim=1).double()
        found[f"ricci_{rule}_first"] = -length[:, 0]
        found[f"ricci_{rule}_shortest"] = -length.amin(dim=1)
    return {name: value.double().numpy() for name, value in found.items()}


def gold_removed(
    dataset: str, config: Config, pools: JudgedPools, size: int, seed: int = 0
) -> NullTable:
    """The best ``size`` of every pool that holds gold, against the same without any gold.

    Args:
        pools: deep enough to fill up what is removed.
    """
    full = pools.top(size)
    places = full.gold.any(dim=1).nonzero()[:, 0].tolist()
    answerable = abstention_features(config, full.some(places))
    null = abstention_features(config, pools.some(places).without_gold(size))
    same = draws(len(places), seed)
    return _table(dataset, REMOVED, answerable, null, same, same)


def impossible(
    dataset: str, config: Config, answerable: JudgedPools, null: JudgedPools, seed: int = 0
) -> NullTable:
    """Answerable questions whose pool holds gold, against impossible ones over the same corpus."""
    places = answerable.gold.any(dim=1).nonzero()[:, 0].tolist()
    return _table(
        dataset,
        IMPOSSIBLE,
        abstention_features(config, answerable.some(places)),
        abstention_features(config, null),
        draws(len(places), seed),
        draws(len(null), seed + 1),
    )


def impossible_questions(folder: Path, part: Part, most: int | None) -> JudgedQueries | None:
    """Questions of ``queries_all.jsonl.gz`` marked impossible whose passage lies in the part."""
    path = folder / "queries_all.jsonl.gz"
    if not path.is_file():
        return None
    queries = [
        Query(str(row["_id"]), str(row["text"]))
        for _, row in json_rows(path)
        if row.get("impossible") is True and part_of_passage(str(row["source"])) == part
    ]
    queries.sort(key=lambda query: query.id)  # ids are hashes: a fixed sample
    chosen = queries[:most]
    return JudgedQueries(chosen, {}, [-1] * len(chosen)) if chosen else None


def auc(answerable: np.ndarray, null: np.ndarray) -> float:
    """Share of pairs in which the answerable value is higher, ties counting half."""
    return float(_wins(answerable, null).mean())


def abstention_curve(
    answerable: np.ndarray, null: np.ndarray, points: int = 41
) -> list[tuple[float, float]]:
    """(share of null queries turned away, share of answerable ones answered), over thresholds."""
    thresholds = np.quantile(null, np.linspace(0, 1, points))
    return [
        (float((null < value).mean()), float((answerable >= value).mean())) for value in thresholds
    ]


def _table(
    dataset: str,
    kind: str,
    answerable: Mapping[str, np.ndarray],
    null: Mapping[str, np.ndarray],
    answerable_draws: np.ndarray,
    null_draws: np.ndarray,
) -> NullTable:
    drawn: dict[str, np.ndarray] = {}
    means: dict[str, float] = {}
    for name, values in answerable.items():
        wins = _wins(values, null[name]).astype(np.float32)
        means[name] = float(wins.mean())
        drawn[name] = ((answerable_draws @ wins) * null_draws).sum(axis=1) / wins.size
    rows = []
    for name, values in answerable.items():
        over = drawn[name] - drawn["max_cosine"]
        rows.append(
            NullRow(
                dataset=dataset,
                kind=kind,
                feature=name,
                auc=Difference(means[name], *interval(drawn[name]), len(values)),
                over_max_cosine=Difference(
                    means[name] - means["max_cosine"], *interval(over), len(values)
                ),
                answered_at_half=float((values >= np.median(null[name])).mean()),
            )
        )
    curves = {
        (kind, name): abstention_curve(values, null[name]) for name, values in answerable.items()
    }
    return NullTable(rows, curves)


def _wins(answerable: Float[np.ndarray, "P"], null: Float[np.ndarray, "Q"]) -> np.ndarray:
    higher = answerable[:, None] > null[None, :]
    return higher + 0.5 * (answerable[:, None] == null[None, :])
