"""Model cards: what a model was trained on and how, and what it was found to be worth."""

from collections.abc import Sequence
from dataclasses import asdict

from ricci_gpu.training.collection import Collection
from ricci_gpu.training.fit import Fitted
from ricci_gpu.training.gains import RAW, TRAINED, Gain
from ricci_gpu.training.settings import RunSettings

LICENCES = {
    "scifact": "claims CC BY 4.0, abstracts ODC-By 1.0",
    "hotpotqa": "CC BY-SA 4.0",
    "squad2": "CC BY-SA 4.0",
}
CAVEATS = {
    "scifact": "Some test claims of SciFact are near copies, often negations, of claims that were "
    "trained on: its figures are better than those on new claims would be.",
    "hotpotqa": "The HotpotQA corpus here is small, made of the contexts of its questions: figures "
    "do not compare with published ones over all of Wikipedia.",
}


def model_card(
    title: str,
    use: str,
    collections: Sequence[Collection],
    settings: RunSettings,
    fitted: Fitted,
    gains: Sequence[Gain],
    baseline: str,
) -> str:
    """The card as Markdown; its picture is ``curve.svg`` beside it.

    Args:
        use: how to load the model, as Python.
    """
    best = fitted.best
    blocks = [
        f"# {title}",
        "Trained here, by this project, on the small judged sets named below; not a published "
        "checkpoint, and not to be quoted as one.",
        f"```python\n{use}\n```",
        "## Trained on",
        _data_table(collections),
        "Only questions of the part `fit` of each set; settings were chosen on the dev part, a "
        "tenth of `fit` by its passages. Hard negatives come from the 20 passages nearest to a "
        "question, and only from passages whose id falls into `fit`.",
        *[CAVEATS[name] for name in _names(collections) if name in CAVEATS],
        "## How",
        ", ".join(f"{name} {value}" for name, value in asdict(settings).items() if name != "data")
        + f". Best of {len(fitted.curve)} epochs: {best.epoch}, with nDCG@10 "
        f"{best.dev_ndcg:.4f} on the dev pools.",
        "![loss and nDCG@10 per epoch](curve.svg)",
        "## Worth",
        f"nDCG@10 of the 20 nearest passages, reordered. Gain: {TRAINED} less {baseline}, with its "
        "95 % paired bootstrap interval over the questions. *Unseen*: none of the question's "
        "relevant passages was read in training either."
        + (" *Untrained*: the projection that training started from." if baseline == RAW else ""),
        gains_table(gains),
    ]
    return "\n\n".join(blocks) + "\n"


def gains_table(gains: Sequence[Gain]) -> str:
    """The gains as a Markdown table."""
    others = [name for name in gains[0].ndcg if name != TRAINED] if gains else []
    header = ["dataset", "part", "questions", "count", *others, TRAINED, "gain", "95 %"]
    rows = [
        [
            each.dataset,
            each.part,
            each.questions,
            str(each.count),
            *[f"{each.ndcg[name]:.4f}" for name in (*others, TRAINED)],
            f"{each.gain:+.4f}",
            f"{each.low:+.4f} to {each.high:+.4f}",
        ]
        for each in gains
    ]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _data_table(collections: Sequence[Collection]) -> str:
    lines = [
        "| set | questions trained on | dev questions | licence of the data |",
        "|---" * 4 + "|",
    ]
    for collection in collections:
        name, questions = collection.dataset.name, collection.questions
        licence = LICENCES.get(name, "see the dataset")
        lines.append(f"| {name} | {len(questions.train)} | {len(questions.dev)} | {licence} |")
    return "\n".join(lines)


def _names(collections: Sequence[Collection]) -> list[str]:
    return [collection.dataset.name for collection in collections]
