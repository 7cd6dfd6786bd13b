"""What do models trained here gain on questions they never saw?

Trains the late-interaction head and the small cross-encoder with their defaults, or goes on where
an earlier call was stopped, and prints nDCG@10 of reordered pools. Run with `make train`.
"""

import argparse
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.record import finish
from ricci_gpu.training.card import gains_table
from ricci_gpu.training.commands import CACHE, OUT
from ricci_gpu.training.recipes import (
    RUN,
    Trained,
    train_cross_encoder,
    train_late_interaction,
)
from ricci_gpu.training.settings import CrossEncoderSettings, LateInteractionSettings, RunSettings


def train(recipe: Any, settings: RunSettings, out: Path, cache: Path) -> dict[str, Any]:
    start = time.perf_counter()
    resume = (out / RUN / "checkpoints" / "last.ckpt").exists()
    trained: Trained = recipe(settings, out, cache, resume)
    print(f"\n{trained.model}: {trained.fitted.best}\n\n{gains_table(trained.gains)}")
    return {
        "model": str(trained.model),
        "settings": asdict(settings),
        "resumed": resume,
        "seconds": round(time.perf_counter() - start),
        "baseline": trained.baseline,
        "best": asdict(trained.fitted.best),
        "gains": [asdict(gain) for gain in trained.gains],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="a folder per training goes in it")
    parser.add_argument("--cache", type=Path, default=CACHE, help="of encoded passages")
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    head = LateInteractionSettings(accelerator="cpu")
    cross = CrossEncoderSettings(accelerator="cpu")
    rows = [
        train(train_late_interaction, head, options.out / "late_interaction", options.cache),
        train(train_cross_encoder, cross, options.out / "cross_encoder", options.cache),
    ]
    finish({"bench": "train", "rows": rows}, options.record)


if __name__ == "__main__":
    main()
