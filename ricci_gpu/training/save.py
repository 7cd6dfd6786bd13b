"""Writes trained models in the layouts that `ricci_gpu.models` and other libraries load."""

import json
from pathlib import Path
from typing import Any

from ricci_gpu.errors import missing
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.models.pretrained import quiet_transformers
from ricci_gpu.shapes import Float, Tensor

ST_MODULES = "sentence_transformers.base.modules"
# What sentence-transformers applies to the score of a cross-encoder.
ACTIVATIONS = {
    "listwise": "torch.nn.modules.linear.Identity",
    "pointwise": "torch.nn.modules.activation.Sigmoid",
}


def save_projection(weight: Float[Tensor, "W D"], base: Encoder, folder: Path) -> None:
    """A projection over a base that stays as it is: the base is named, not copied."""
    _write_weights({"linear.weight": weight}, folder / "model.safetensors")
    note = {
        "base": base.name,
        "base_fingerprint": base.fingerprint,
        "width": weight.shape[0],
    }
    _write_json(note, folder / "late_interaction.json")


def save_multi_vector(
    weight: Float[Tensor, "W D"], encoder: Any, tokenizer: Any, max_tokens: int, folder: Path
) -> None:
    """Encoder and projection in the layout of sentence-transformers' ``MultiVectorEncoder``.

    Every token is scored, those that frame a text included: no prefix, no expansion, no skip list.
    """
    _save_pretrained(encoder, tokenizer, folder)
    modules = [("", "transformer.Transformer"), ("1_Dense", "dense.Dense")]
    modules += [("2_Normalize", "normalize.Normalize")]
    listed = [
        {"idx": place, "name": str(place), "path": path, "type": f"{ST_MODULES}.{kind}"}
        for place, (path, kind) in enumerate(modules)
    ]
    dense = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
        "module_input_name": "token_embeddings",
        "module_output_name": "token_embeddings",
    }
    _write_weights({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    _write_json(dense, folder / "1_Dense" / "config.json")
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    _write_json(tokens, folder / "2_Normalize" / "config.json")
    _write_json(listed, folder / "modules.json")
    transformer = {
        "transformer_task": "feature-extraction",
        "max_seq_length": max_tokens,
        "module_output_name": "token_embeddings",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "last_hidden_state"}
        },
    }
    _write_json(transformer, folder / "sentence_bert_config.json")
    settings = {
        "model_type": "MultiVectorEncoder",
        "prompts": {"query": "", "document": ""},
        "similarity_fn_name": "maxsim",
    }
    _write_json(settings, folder / "config_sentence_transformers.json")


def save_cross_encoder(model: Any, tokenizer: Any, loss: str, folder: Path) -> None:
    """A transformers folder; the activation is noted where sentence-transformers reads it."""
    model.config.sentence_transformers = {"activation_fn": ACTIVATIONS[loss]}
    _save_pretrained(model, tokenizer, folder)


def _save_pretrained(model: Any, tokenizer: Any, folder: Path) -> None:
    with quiet_transformers("saving a model"):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_weights(weights: dict[str, Tensor], path: Path) -> None:
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise missing("safetensors", "saving a model", "models") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    path.write_bytes(save(plain))  # `save_file` makes files that only their owner may read


def _write_json(document: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
