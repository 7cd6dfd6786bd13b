"""Settings of the trainings. The command line shows their defaults: nothing heavy here."""

from dataclasses import dataclass
from typing import Literal

from ricci_gpu.errors import SettingError

LOSSES = ("listwise", "pointwise")
POOL = 20  # candidates per question: where negatives are mined, and what is reranked


@dataclass(frozen=True)
class RunSettings:
    """How a training runs, whatever is trained.

    Args:
        data: datasets, folders of the folder that RICCI_GPU_DATA names.
        epochs: at most so many passes over the questions.
        patience: stop after so many epochs without a better nDCG@10 on the dev part.
        batch: questions per step and device.
        negatives: hard negatives per question and epoch, drawn anew for each epoch.
        accelerator, devices, strategy, precision: as for `lightning.Trainer`.
    """

    data: tuple[str, ...] = ("scifact", "hotpotqa", "squad2")
    seed: int = 0
    epochs: int = 4
    patience: int = 2
    batch: int = 16
    negatives: int = 4
    learning_rate: float = 3e-4
    accelerator: str = "auto"
    devices: str = "auto"
    strategy: str = "auto"
    precision: str = "32-true"

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch", "negatives"):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"`{name}` must be at least 1; got {getattr(self, name)}. Raise it."
                )
        if self.seed < 0:
            raise SettingError(f"`seed` must not be negative; got {self.seed}. Raise it.")
        if not self.learning_rate > 0:
            raise SettingError(
                f"`learning_rate` must be positive; got {self.learning_rate}. Raise it."
            )
        if not self.data:
            raise SettingError("`data` must name at least one dataset; got none. Name one.")


@dataclass(frozen=True)
class LateInteractionSettings(RunSettings):
    """A linear projection of token vectors, trained through MaxSim.

    Args:
        base: the encoder whose token vectors are projected.
        width: length of the projected vectors.
        temperature: MaxSim is divided by it before the softmax of the loss.
        train_encoder: also train the encoder; its token vectors are then computed at each step.
        max_tokens: longest passage, of the trained encoder only; a frozen one reads all it can.
    """

    negatives: int = 8
    base: str = "all-MiniLM-L6-v2"
    width: int = 128
    temperature: float = 0.5
    train_encoder: bool = False
    max_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise SettingError(f"`width` must be at least 1; got {self.width}. Raise it.")
        if not self.temperature > 0:
            raise SettingError(f"`temperature` must be positive; got {self.temperature}. Raise it.")


@dataclass(frozen=True)
class CrossEncoderSettings(RunSettings):
    """A classifier with one label that reads question and passage together.

    Args:
        base: ``splade-tiny-msmarco`` (a BERT of 2 layers x 128 in a package), ``all-MiniLM-L6-v2``,
            a folder, or a name on the hub.
        retriever: the encoder whose nearest passages are the pools.
        loss: ``listwise``, a softmax over the positive and its negatives, or ``pointwise``, a
            binary cross-entropy per pair.
        max_tokens: longest pair; the longer side is cut.
        train_embeddings: also the vectors of words. Few questions hold few words: those that are
            not among them had better stay where the others are.
    """

    epochs: int = 8
    learning_rate: float = 5e-4
    base: str = "splade-tiny-msmarco"
    retriever: str = "all-MiniLM-L6-v2"
    loss: Literal["listwise", "pointwise"] = "listwise"
    max_tokens: int = 256
    train_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise SettingError(f"`loss` must be one of {', '.join(LOSSES)}; got {self.loss!r}.")
