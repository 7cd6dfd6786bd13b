"""Runs a training with Lightning: seeded, resumable, stopped early, with a curve.

The folder of a run holds ``run.json`` (its settings, and whether it is finished),
``checkpoints/`` (``last.ckpt``, from which ``resume`` goes on, and ``best.ckpt``), ``curve.csv``
and ``curve.svg``. Checkpoints are written at the end of an epoch, and what an epoch reads depends
on seed and epoch alone: a killed run, resumed, ends with the weights of an uninterrupted one (on
a CPU bit for bit; some sums on CUDA have no fixed order).
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ricci_gpu.errors import InputError, missing
from ricci_gpu.output import atomic_file
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.training.curve import Point, draw_curve, write_csv
from ricci_gpu.training.quality import mean_ndcg
from ricci_gpu.training.settings import RunSettings

logger = logging.getLogger(__name__)

RUN = "run.json"
WARM_UP = 0.1  # share of the steps in which the learning rate rises, before it falls to 0


@runtime_checkable
class Ranker(Protocol):
    """What is trained: a `torch.nn.Module` that scores batches and knows its loss.

    A batch has a field ``relevant``, which passages answer the question; nothing else is read of
    it here.
    """

    def __call__(self, batch: Any) -> Float[Tensor, "B W"]: ...

    def loss(
        self, scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]
    ) -> Float[Tensor, ""]: ...

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]: ...

    def load_state_dict(self, state: Any) -> Any: ...


@dataclass(frozen=True)
class Fitted:
    """How a training went; the ranker holds the weights of the best epoch.

    Args:
        curve: one point per epoch.
        best: the epoch with the best nDCG@10 on the dev part.
        first_process: false in all but one process of a training on several devices; only that
            one writes results.
    """

    curve: list[Point]
    best: Point
    first_process: bool


def fit(
    ranker: Ranker,
    train: Callable[[int], Dataset[Any]],
    dev: Dataset[Any],
    settings: RunSettings,
    folder: Path,
    resume: bool = False,
) -> Fitted:
    """Train the ranker, and give it the weights of its best epoch.

    Args:
        train: the batches of an epoch.
        dev: batches whose passages are whole pools.
        folder: of the run; without ``resume`` it must not hold a run yet.

    Raises:
        InputError: nothing to resume, a run there already, or one with other settings.
        MissingDependencyError: without lightning.
    """
    last, best = (folder / "checkpoints" / f"{name}.ckpt" for name in ("last", "best"))
    if not _open_run(folder, last, settings, resume):
        _run_trainer(ranker, train, dev, settings, folder, last if resume else None)
    top = _load(best)
    weights = top["state_dict"]
    ranker.load_state_dict({name.removeprefix("ranker."): weights[name] for name in weights})
    return Fitted(
        curve=[Point(**point) for point in _load(last)["curve"]],
        best=Point(**top["curve"][-1]),
        first_process=not _is_child_process(),
    )


def _run_trainer(
    ranker: Ranker,
    train: Callable[[int], Dataset[Any]],
    dev: Dataset[Any],
    settings: RunSettings,
    folder: Path,
    checkpoint: Path | None,
) -> None:
    """Train, from a checkpoint on if there is one, and note that the run is finished."""
    try:
        from lightning.pytorch import Trainer, seed_everything
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    except ImportError as error:
        raise missing("lightning", "training", "train") from error
    always: dict[str, Any] = {
        "dirpath": folder / "checkpoints",
        "save_on_train_epoch_end": True,
        "enable_version_counter": False,
    }
    best: dict[str, Any] = {"monitor": "dev_ndcg", "mode": "max"}
    callbacks = [
        EarlyStopping(patience=settings.patience, check_on_train_epoch_end=True, **best),
        ModelCheckpoint(filename="best", **best, **always),
        ModelCheckpoint(filename="last", **always),  # `save_last` writes only together with `best`
    ]
    with _quiet_lightning():
        seed_everything(settings.seed, workers=True, verbose=False)
        trainer = Trainer(
            accelerator=settings.accelerator,
            devices=int(settings.devices) if settings.devices.isdigit() else settings.devices,
            strategy=settings.strategy,
            precision=settings.precision,  # type: ignore[arg-type]
            max_epochs=settings.epochs,
            callbacks=callbacks,
            gradient_clip_val=1.0,
            num_sanity_val_steps=0,
            reload_dataloaders_every_n_epochs=1,
            logger=False,
            enable_model_summary=False,
            enable_progress_bar=sys.stderr.isatty(),
        )
        module = _lightning_module(ranker, train, dev, settings, folder)
        trainer.fit(module, ckpt_path=checkpoint, weights_only=True)
    if trainer.is_global_zero:
        _note_run(folder, settings, finished=True)


def _open_run(folder: Path, last: Path, settings: RunSettings, resume: bool) -> bool:
    """Note the settings of a new run, or compare those of an old one; whether it is finished."""
    if _is_child_process():
        return False
    if not resume:
        if last.exists():
            raise InputError(
                f"{folder}: holds a run already. Go on with --resume, or choose another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        _note_run(folder, settings, finished=False)
        return False
    if not last.exists():
        raise InputError(
            f"{folder}: nothing to resume: there is no {last.relative_to(folder)}. "
            "Start it without --resume."
        )
    noted = json.loads((folder / RUN).read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(asdict(settings)))
    other = [name for name in wanted if noted.get(name) != wanted[name]]
    if other:
        shown = ", ".join(f"`{name}` was {noted.get(name)!r}" for name in other)
        raise InputError(
            f"{folder}: a run is resumed with the settings it was started with; {shown}. "
            "Give the same settings, or start anew in another folder."
        )
    return bool(noted["finished"])


def _note_run(folder: Path, settings: RunSettings, finished: bool) -> None:
    note = asdict(settings) | {"finished": finished}
    with atomic_file(folder / RUN) as temporary:
        temporary.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def _load(checkpoint: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    return state


def _lightning_module(
    ranker: Ranker,
    train: Callable[[int], Dataset[Any]],
    dev: Dataset[Any],
    settings: RunSettings,
    folder: Path,
) -> Any:
    """The ranker as Lightning wants it; defined here because lightning is optional."""
    from lightning.pytorch import LightningModule

    class RankerTraining(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.ranker = ranker
            self.curve: list[Point] = []

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(train(self.current_epoch), batch_size=None)

        def val_dataloader(self) -> DataLoader[Any]:
            return DataLoader(dev, batch_size=None)

        def on_train_batch_start(self, batch: Any, place: int) -> None:
            # What dropout draws is a function of seed, epoch, step and process too.
            parts = (settings.seed, self.current_epoch, place, self.global_rank)
            torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))

        def training_step(self, batch: Any, place: int) -> Tensor:
            loss = ranker.loss(ranker(batch), batch.relevant)
            self._note("train_loss", loss, batch)
            return loss

        def validation_step(self, batch: Any, place: int) -> None:
            scores = ranker(batch)
            self._note("dev_loss", ranker.loss(scores, batch.relevant), batch)
            self._note("dev_ndcg", mean_ndcg(scores, batch.relevant), batch)

        def _note(self, name: str, value: Any, batch: Any) -> None:
            size = len(batch.relevant)
            self.log(name, value, on_step=False, on_epoch=True, batch_size=size, sync_dist=True)

        def on_train_epoch_end(self) -> None:
            seen = self.trainer.callback_metrics
            losses = {name: float(seen[name]) for name in ("train_loss", "dev_loss", "dev_ndcg")}
            point = Point(epoch=self.current_epoch + 1, **losses)
            self.curve.append(point)
            if self.trainer.is_global_zero:
                logger.info("%s", point)
                write_csv(self.curve, folder / "curve.csv")
                (folder / "curve.svg").write_text(draw_curve(self.curve), encoding="utf-8")

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["curve"] = [asdict(point) for point in self.curve]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.curve = [Point(**point) for point in checkpoint["curve"]]

        def configure_optimizers(self) -> Any:
            groups = ranker.parameter_groups(settings.learning_rate)
            optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
            steps = max(1, int(self.trainer.estimated_stepping_batches))
            warm = max(1, round(WARM_UP * steps))

            def share(step: int) -> float:
                return min((step + 1) / warm, (steps - step) / max(1, steps - warm), 1.0)

            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return RankerTraining()


def _is_child_process() -> bool:
    """Whether Lightning started this process for a further device."""
    return os.environ.get("LOCAL_RANK", "0") != "0"


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without the remarks of Lightning that are of no use here."""
    chatty = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [each.level for each in chatty]
    for each in chatty:
        each.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # batches are cut from memory: workers would only copy it
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            # Lightning 2.6 itself, under torch 2.13
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
            # on purpose, in order to resume
            warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists and is not empty.*")
            yield
    finally:
        for each, level in zip(chatty, levels, strict=True):
            each.setLevel(level)
