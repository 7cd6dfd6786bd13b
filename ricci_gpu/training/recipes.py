"""The two trainings, from datasets to a model folder with its card.

The model folder holds ``run/`` too, which users of the model do not need: what
`ricci_gpu.training.fit` writes.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import Dataset as Batches

from ricci_gpu.corpus.judged import data_folder
from ricci_gpu.errors import missing
from ricci_gpu.evaluation.datasets import find_datasets
from ricci_gpu.models.encoder import Encoded, Encoder
from ricci_gpu.models.folder import find_model
from ricci_gpu.models.pretrained import load_network, load_tokenizer
from ricci_gpu.shapes import Float, Tensor
from ricci_gpu.training.card import model_card
from ricci_gpu.training.collection import Collection, open_collection
from ricci_gpu.training.cross_encoder import CrossEncoderRanker, PairBatches, load_classifier
from ricci_gpu.training.draws import Batch, Draws
from ricci_gpu.training.fit import Fitted, fit
from ricci_gpu.training.gains import DENSE, RAW, START, TRAINED, Gain, Scorer, measure_gains
from ricci_gpu.training.late_interaction import (
    FrozenTexts,
    LateInteractionRanker,
    LiveTexts,
    Packed,
    TokenBatch,
    TokenBatches,
    pool_maxsim,
    principal_directions,
)
from ricci_gpu.training.save import save_cross_encoder, save_multi_vector, save_projection
from ricci_gpu.training.settings import CrossEncoderSettings, LateInteractionSettings, RunSettings

RUN = "run"
DEV_QUESTIONS = 4  # that a cross-encoder scores at once, each with its whole pool


@dataclass(frozen=True)
class Trained:
    """A finished training: its model folder, how it went, and what it gains."""

    model: Path
    fitted: Fitted
    gains: list[Gain]
    baseline: str


@dataclass(frozen=True)
class Prepared:
    """Datasets with everything that a training draws from."""

    encoder: Encoder
    collections: list[Collection]
    encoded: list[Encoded]
    draws: Draws

    def read_rows(self) -> list[set[int]]:
        return [self.draws.read_rows(place) for place in range(len(self.collections))]


def train_late_interaction(
    settings: LateInteractionSettings, out: Path, cache: Path, resume: bool = False
) -> Trained | None:
    """Train a projection of token vectors, and on request their encoder.

    Args:
        out: folder of the model.
        cache: where encoded passages are kept.

    Returns:
        None in the further processes of a training on several devices.
    """
    ready = _prepare(settings, settings.base, cache)
    tokens = [collection.token_vectors for collection in ready.collections]
    start = principal_directions(tokens, settings.width)
    network = tokenizer = None
    if settings.train_encoder:
        path, purpose = find_model(settings.base).path, "training an encoder"
        tokenizer = load_tokenizer(path, purpose)
        network = load_network(path, "AutoModel", purpose, "cpu", torch.float32).train()
    ranker = LateInteractionRanker(start, settings.temperature, network)

    def batches(
        collections: Sequence[Collection],
        encoded: Sequence[Encoded],
        cut: Sequence[Batch],
        in_batch: bool = False,
    ) -> TokenBatches:
        texts: FrozenTexts | LiveTexts = FrozenTexts(collections, encoded)
        if tokenizer is not None:
            texts = LiveTexts(collections, tokenizer, settings.max_tokens)
        return TokenBatches(cut, texts, in_batch)

    def epoch(number: int) -> TokenBatches:
        drawn = ready.draws.epoch(settings.seed, number, settings.batch, settings.negatives)
        return batches(ready.collections, ready.encoded, drawn, in_batch=True)

    dev = batches(ready.collections, ready.encoded, ready.draws.dev(settings.batch))
    fitted = fit(ranker, epoch, dev, settings, out / RUN, resume)
    if not fitted.first_process:
        return None
    weight = ranker.linear.weight.detach()
    if settings.train_encoder:
        save_multi_vector(weight, ranker.encoder, tokenizer, settings.max_tokens, out)
    else:
        save_projection(weight, ready.encoder, out)
    scorers: dict[str, Scorer] = {TRAINED: ranker.eval().to(ready.encoder.device)}
    baseline = DENSE
    if not settings.train_encoder:
        untrained = LateInteractionRanker(start, settings.temperature).to(ready.encoder.device)
        scorers, baseline = {RAW: _raw_maxsim, START: untrained, **scorers}, RAW
    gains = _gains(
        ready, lambda each, encoded, cut: batches([each], [encoded], cut), scorers, baseline
    )
    title = f"Late interaction over {settings.base}: {settings.width} numbers per token"
    use = (
        "from ricci_gpu.models.late_interaction import LateInteraction\n\n"
        'model = LateInteraction.load("path/of/this/folder")'
    )
    return _finish(title, use, ready, settings, fitted, gains, baseline, out)


def train_cross_encoder(
    settings: CrossEncoderSettings, out: Path, cache: Path, resume: bool = False
) -> Trained | None:
    """Train a classifier with one label on (question, passage) pairs.

    Args and returns: as for `train_late_interaction`.
    """
    ready = _prepare(settings, settings.retriever, cache)
    torch.manual_seed(settings.seed)  # the new label starts with random weights
    network, tokenizer = load_classifier(settings.base, settings.max_tokens)
    network.get_input_embeddings().requires_grad_(settings.train_embeddings)
    ranker = CrossEncoderRanker(network, settings.loss)

    def batches(collections: Sequence[Collection], cut: Sequence[Batch]) -> PairBatches:
        return PairBatches(cut, collections, tokenizer, settings.max_tokens)

    def epoch(number: int) -> PairBatches:
        drawn = ready.draws.epoch(settings.seed, number, settings.batch, settings.negatives)
        return batches(ready.collections, drawn)

    dev = batches(ready.collections, ready.draws.dev(DEV_QUESTIONS))
    fitted = fit(ranker, epoch, dev, settings, out / RUN, resume)
    if not fitted.first_process:
        return None
    save_cross_encoder(network, tokenizer, settings.loss, out)
    scorers: dict[str, Scorer] = {TRAINED: ranker.eval().to(ready.encoder.device)}
    gains = _gains(ready, lambda each, _, cut: batches([each], cut), scorers, DENSE)
    title = f"Cross-encoder over {settings.base}"
    use = (
        "from ricci_gpu.models.cross_encoder import CrossEncoder\n\n"
        'model = CrossEncoder.load("path/of/this/folder")'
    )
    return _finish(title, use, ready, settings, fitted, gains, DENSE, out)


def _prepare(settings: RunSettings, encoder_name: str, cache: Path) -> Prepared:
    on_gpu = settings.accelerator != "cpu" and torch.cuda.is_available()
    encoder = Encoder.load(encoder_name, device="cuda" if on_gpu else "cpu")
    collections = []
    for dataset in find_datasets(data_folder(), list(settings.data), cache):
        with _bar(f"encode {dataset.name}") as progress:
            collections.append(open_collection(dataset, encoder, cache, progress))
    encoded, pools = [], []
    for collection in collections:
        with _bar(f"encode questions of {collection.dataset.name}") as progress:
            texts = [question.text for question in collection.asked]
            found = encoder.encode(texts, tokens=True, progress=progress)
        encoded.append(found)
        pools.append(collection.pools(found.vectors.cpu()))
    return Prepared(encoder, collections, encoded, Draws(collections, pools))


def _gains(
    ready: Prepared,
    batches: Callable[[Collection, Encoded, Sequence[Batch]], Batches[Any]],
    scorers: dict[str, Scorer],
    baseline: str,
) -> list[Gain]:
    with _bar("measure gains") as progress:
        return measure_gains(
            ready.collections,
            ready.encoder,
            ready.read_rows(),
            batches,
            scorers,
            baseline,
            progress,
        )


def _raw_maxsim(batch: TokenBatch) -> Float[Tensor, "B W"]:
    """MaxSim of the token vectors as they are, which those of a frozen encoder are."""
    queries, documents = cast(Packed, batch.queries), cast(Packed, batch.documents)
    return pool_maxsim(queries, documents, batch.document_of)


def _finish(
    title: str,
    use: str,
    ready: Prepared,
    settings: RunSettings,
    fitted: Fitted,
    gains: list[Gain],
    baseline: str,
    out: Path,
) -> Trained:
    card = model_card(title, use, ready.collections, settings, fitted, gains, baseline)
    (out / "README.md").write_text(card, encoding="utf-8")
    shutil.copy(out / RUN / "curve.svg", out / "curve.svg")
    return Trained(out, fitted, gains, baseline)


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A callback that draws a bar on standard error, on a terminal only."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise missing("lightning", "training", "train") from error
    with tqdm(desc=title, disable=None, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
