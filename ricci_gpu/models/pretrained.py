"""Loading tokenizers and networks with transformers, quietly and without running foreign code."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ricci_gpu.errors import InputError, SettingError, missing


def load_tokenizer(path: Path, purpose: str, **settings: Any) -> Any:
    """The fast tokenizer of a folder.

    Raises:
        SettingError: the folder has only a slow one.
        MissingDependencyError: without transformers.
    """
    with quiet_transformers(purpose):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **settings)
    if not tokenizer.is_fast:
        raise SettingError(
            f"{path}: this needs a fast tokenizer (`tokenizer.json`); this one has only a slow "
            "one. Convert it, or choose another model."
        )
    return tokenizer


def load_network(
    path: Path,
    head: str,
    purpose: str,
    device: torch.device | str,
    dtype: torch.dtype,
    **settings: Any,
) -> Any:
    """The network of a folder, ready for inference, from safetensors only.

    Args:
        head: name of the class of transformers that says what it ends in, such as ``AutoModel``.

    Raises:
        SettingError: the folder does not hold such a network.
        MissingDependencyError: without transformers.
    """
    with quiet_transformers(purpose):
        import transformers

        try:
            network = getattr(transformers, head).from_pretrained(
                path, use_safetensors=True, trust_remote_code=False, **settings
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise SettingError(
                f"{path}: cannot be loaded as {head} from safetensors ({reason}). Choose another "
                "model, or convert this one."
            ) from error
    return network.to(device=device, dtype=dtype).eval()


def longest_input(tokenizer: Any, network: Any) -> int:
    """The most tokens that fit, special ones included."""
    positions = getattr(network.config, "max_position_embeddings", None)
    limit = int(tokenizer.model_max_length)
    return limit if positions is None else min(limit, int(positions))


def readable(texts: Sequence[str]) -> list[str]:
    """The texts with lone surrogates, which no tokenizer takes, read as ``?``."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def require_strings(texts: Sequence[Any]) -> None:
    """Refuse anything but a list of strings, before a tokenizer fails on it.

    Raises:
        InputError: one string, or something that is no string among the texts.
    """
    if isinstance(texts, str):
        raise InputError(
            f"`texts` must be a list of strings; got one string ({texts[:40]!r}). Put it in a list."
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"every text must be a string; text {row} is {type(text).__name__} ({text!r}). "
                "Convert it, or use an empty string."
            )


def require_pairs(pairs: Sequence[Any]) -> None:
    """Refuse anything but pairs of strings.

    Raises:
        InputError: what is not a pair, or a pair that holds something else.
    """
    for row, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(t, str) for t in pair):
            raise InputError(
                f"every pair must be (query, document), two strings; pair {row} is {pair!r}. "
                "Correct it."
            )


@contextmanager
def quiet_transformers(purpose: str) -> Iterator[None]:
    """Silence progress bars and chatter while loading, and restore them afterwards."""
    try:
        from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
        from transformers.utils import logging as noise
    except ImportError as error:
        raise missing("transformers", purpose, "models") from error
    verbosity, bars = noise.get_verbosity(), noise.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    noise.set_verbosity_error()
    noise.disable_progress_bar()  # also those of the hub
    try:
        yield
    finally:
        noise.set_verbosity(verbosity)
        if bars:
            noise.enable_progress_bar()
        elif hub_bars:
            enable_progress_bars()
