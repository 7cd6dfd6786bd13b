"""Grading by a causal language model that runs here; the scale and the prompt are `llm_grader`'s.

Its grade is the mean of the digits 0 to 3, weighted by the model's probabilities of them as the
next token: one forward pass per pair, and nothing is generated.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import SettingError, missing
from ricci_gpu.models.batching import (
    batches_by_length,
    pad_right,
    real_tokens,
    token_budget,
    windows,
)
from ricci_gpu.models.folder import Located, fingerprint, locate, require_safetensors
from ricci_gpu.models.llm_grader import GRADES, conversation, prompt_sha256
from ricci_gpu.models.pretrained import (
    load_network,
    load_tokenizer,
    longest_input,
    readable,
    require_pairs,
)
from ricci_gpu.shapes import Float, Tensor

MAX_TOKENS = 2048  # of one request; of longer passages the end is cut


class LocalGrader:
    """A causal language model that grades. Make one with `LocalGrader.load`.

    Attributes:
        name, source: what it was asked for by, and where its files came from.
        max_tokens: longest request; the passage is cut to fit.
    """

    def __init__(self, name: str, found: Located, model: Any, tokenizer: Any) -> None:
        self.name, self.source = name, found.source
        self.max_tokens = min(longest_input(tokenizer, model), MAX_TOKENS)
        self._path: Path = found.path
        self._model = model
        self._tokenizer = tokenizer
        self._digits = self._digit_ids()

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = "smollm2-135m-instruct",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "LocalGrader":
        """Load a causal language model: the packaged one, a folder, or a name on the hub.

        A folder holds safetensors, or one GGUF file, whose weights are unpacked to ``dtype``.

        Raises:
            SettingError: the model is nowhere or cannot be read.
            MissingDependencyError: without transformers, or for GGUF without gguf.
        """
        found, purpose = locate(name, "language model"), "loading a language model"
        settings: dict[str, str] = {}
        files = sorted(found.path.glob("*.gguf"))
        if files:
            _require_gguf()
            settings = {"gguf_file": files[0].name}
        else:
            require_safetensors(found.path)
        tokenizer = load_tokenizer(found.path, purpose, **settings)
        model = load_network(found.path, "AutoModelForCausalLM", purpose, device, dtype, **settings)
        return cls(str(name), found, model, tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files, the prompt and the precision."""
        settings = {
            "max_tokens": self.max_tokens,
            "prompt": prompt_sha256(),
            "dtype": str(self._model.dtype),
        }
        return fingerprint(settings, [self._path])

    @torch.no_grad()
    def grade(
        self,
        pairs: Sequence[tuple[str, str]],
        progress: Callable[[int, int], None] | None = None,
        batch_tokens: int | None = None,
    ) -> list[float | None]:
        """A grade from 0 to 3 per pair, never missing.

        The grade of a pair does not depend on the others: in other company it moves by the
        rounding of float32, below 1e-4.

        Args:
            progress: called with the number of pairs done and their total.
            batch_tokens: padded tokens per forward pass (a single request may exceed it); by
                default what suits the device.

        Raises:
            InputError: something that is not a pair of strings.
            SettingError: ``batch_tokens`` is not positive.
        """
        require_pairs(pairs)
        budget = token_budget(batch_tokens, self._model.device)
        grades: list[float | None] = [None] * len(pairs)
        done = 0
        for window in windows(len(pairs)):
            ids = [self._request(*pair) for pair in pairs[window]]
            for rows in batches_by_length([len(row) for row in ids], budget):
                values = self._values([ids[row] for row in rows]).tolist()
                for row, value in zip(rows, values, strict=True):
                    grades[window.start + row] = value
                done += len(rows)
                if progress is not None:
                    progress(done, len(pairs))
        return grades

    def _values(self, ids: list[np.ndarray]) -> Float[Tensor, "b"]:
        device = self._model.device
        pad = self._tokenizer.pad_token_id or 0  # never looked at
        batch = torch.from_numpy(pad_right(ids, pad)).to(device)
        lengths = torch.tensor([len(row) for row in ids], device=device)
        mask = real_tokens(lengths, batch.shape[1])
        # hidden states, so that logits are made for the last token of each request alone
        hidden = self._model.base_model(input_ids=batch, attention_mask=mask.long())
        last = hidden.last_hidden_state[torch.arange(len(ids), device=device), lengths - 1]
        logits = self._model.get_output_embeddings()(last)[:, self._digits].float()
        grades = torch.tensor(GRADES, dtype=torch.float32, device=device)
        return logits.softmax(dim=1) @ grades

    def _request(self, query: str, passage: str) -> np.ndarray:
        """Token ids of the whole request; a passage that is too long loses its end."""
        ids = self._ids(query, passage)
        while len(ids) > self.max_tokens and passage:
            kept = len(passage) * self.max_tokens // len(ids)
            passage = passage[: min(kept, len(passage) - 1)]
            ids = self._ids(query, passage)
        return ids[: self.max_tokens]

    def _ids(self, query: str, passage: str) -> np.ndarray:
        messages = conversation(*readable([query, passage]))
        tokenizer = self._tokenizer
        if tokenizer.chat_template is not None:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, add_special_tokens=False).input_ids
        else:
            text = "\n\n".join(message["content"] for message in messages) + " "
            ids = tokenizer(text).input_ids
        return np.array(ids, dtype=np.int64)

    def _digit_ids(self) -> list[int]:
        found = [self._tokenizer.encode(str(g), add_special_tokens=False)[-1:] for g in GRADES]
        ids = [each[0] for each in found if each]
        if len(set(ids)) != len(GRADES):
            raise SettingError(
                f"{self._path}: a grading model must have a token per digit; this tokenizer reads "
                "0, 1, 2, 3 as other pieces. Choose another model, or put it behind an endpoint."
            )
        return ids


def _require_gguf() -> None:
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise missing("gguf", "reading a GGUF model", "llm") from error
