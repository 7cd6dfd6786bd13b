"""Answers written from the passages that a system hands out, and how they are scored.

Any chat model behind an OpenAI-compatible address may write them, or a small causal language model
that runs here. Scoring follows SQuAD (Rajpurkar et al. 2016): case, punctuation and articles do not
count; precision, recall and F1 are of words, against the closest of the accepted answers. Accuracy
is whether an accepted answer stands in the written one.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from ricci_gpu.corpus.files import find_file, json_rows
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError
from ricci_gpu.evaluation.paper_protocol import TOP, System, ranked_ids, run_system
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.models.folder import fingerprint, locate
from ricci_gpu.models.kept_answers import KeptAnswers, key_of_request
from ricci_gpu.models.pretrained import load_network, load_tokenizer, readable

INSTRUCTION = (
    "Answer the question from the passages alone, in a few words, without a sentence around them. "
    "If they do not answer it, reply: unknown."
)
WORDS_PER_PASSAGE = 120  # of each of the passages that are handed out
ANSWER_TOKENS = 24
SLICE = 16  # answers between two writes
Message = dict[str, str]


@runtime_checkable
class Generator(Protocol):
    """A chat model; `ricci_gpu.models.chat_endpoint.ChatEndpoint` is one."""

    def ask(
        self, conversations: Sequence[Sequence[Message]], max_tokens: int
    ) -> Sequence[str | None]:
        """The answer to each conversation; None where there is none."""
        ...


@dataclass(frozen=True)
class AnswerRow:
    """Means over the questions; a missing answer counts as wrong."""

    dataset: str
    system: str
    questions: int
    accuracy: float
    precision: float
    recall: float
    f1: float


class LocalChat:
    """A causal language model that runs here and answers greedily, one question at a time."""

    def __init__(self, name: str) -> None:
        found, purpose = locate(name, "language model"), "answering questions"
        files = sorted(found.path.glob("*.gguf"))
        settings = {"gguf_file": files[0].name} if files else {}
        self.fingerprint = fingerprint({"chat": name}, [found.path])
        self._tokenizer = load_tokenizer(found.path, purpose, **settings)
        self._model = load_network(
            found.path, "AutoModelForCausalLM", purpose, "cpu", torch.float32, **settings
        )

    @torch.no_grad()
    def ask(self, conversations: Sequence[Sequence[Message]], max_tokens: int) -> list[str | None]:
        """Greedy answers; special tokens are left out."""
        answers: list[str | None] = []
        for conversation in conversations:
            text = self._tokenizer.apply_chat_template(
                list(conversation), tokenize=False, add_generation_prompt=True
            )
            given = self._tokenizer(readable([text]), return_tensors="pt", add_special_tokens=False)
            made = self._model.generate(
                **given,
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=self._tokenizer.eos_token_id,
            )
            new = made[0, given["input_ids"].shape[1] :]
            answers.append(self._tokenizer.decode(new, skip_special_tokens=True).strip())
        return answers


class RememberedAnswers:
    """A generator that keeps every answer in a file and asks for none twice.

    Args:
        name: of the generator, and of where it runs: its answers are its own.
    """

    def __init__(self, generator: Generator, name: str, path: Path) -> None:
        self._generator, self._name = generator, name
        self._kept = KeptAnswers(path)

    def ask(
        self, conversations: Sequence[Sequence[Message]], max_tokens: int
    ) -> Sequence[str | None]:
        """As the generator; a crash costs at most `SLICE` answers."""
        keys = [key_of_request(self._name, max_tokens, list(each)) for each in conversations]
        return self._kept.complete(
            conversations, keys, lambda part: self._generator.ask(part, max_tokens), SLICE
        )


def answer_questions(
    dataset: str,
    store: CorpusStore,
    pools: JudgedPools,
    accepted: Mapping[str, Sequence[str]],
    compared: Sequence[System],
    generator: Generator,
) -> list[AnswerRow]:
    """Answers from the five passages of each system.

    Args:
        accepted: answers by query id; other queries are left out.
    """
    places = [place for place, query in enumerate(pools.queries) if query.id in accepted]
    if not places:
        return []
    asked = pools.some(places)
    text_of = {passage.id: passage.full_text for passage in store.passages}
    rows = []
    for system in compared:
        outcome = run_system(system, asked)
        handed = ranked_ids(store, asked, outcome, survivors_only=True)
        conversations = [
            conversation(query.text, [text_of[name] for name in handed[query.id][:TOP]])
            for query in asked.queries
        ]
        answers = generator.ask(conversations, ANSWER_TOKENS)
        scores = [
            score_answer(answer or "", accepted[query.id])
            for query, answer in zip(asked.queries, answers, strict=True)
        ]
        means = [sum(column) / len(scores) for column in zip(*scores, strict=True)]
        rows.append(AnswerRow(dataset, system.name, len(scores), *means))
    return rows


def conversation(question: str, passages: Sequence[str]) -> list[Message]:
    """The request for one answer."""
    numbered = [
        f"[{place}] {' '.join(passage.split()[:WORDS_PER_PASSAGE])}"
        for place, passage in enumerate(passages, start=1)
    ]
    content = "\n".join([*numbered, "", f"Question: {question}"])
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}]


def score_answer(answer: str, accepted: Sequence[str]) -> tuple[float, float, float, float]:
    """Accuracy, and precision, recall and F1 against the accepted answer with the highest F1.

    >>> score_answer("The Eiffel Tower!", ["Eiffel tower"])
    (1.0, 1.0, 1.0, 1.0)
    """
    written = normal_words(answer)
    accurate = any(_contains(written, normal_words(each)) for each in accepted)
    best = max((_overlap(written, normal_words(each)) for each in accepted), key=lambda s: s[2])
    return (float(accurate), *best)


def normal_words(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def accepted_answers(folder: Path) -> dict[str, list[str]]:
    """The field ``answer`` of ``queries.jsonl`` by query id: a text or several; empty without.

    Raises:
        InputError: an answer that is something else.
    """
    source = find_file(folder, ("queries.jsonl", "queries.jsonl.gz"), "queries")
    found: dict[str, list[str]] = {}
    for _, row in json_rows(source):
        name, answer = str(row.get("_id", row.get("id"))), row.get("answer")
        answers = [answer] if isinstance(answer, str) else answer
        if answers is None:
            continue
        if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
            raise InputError(
                f"{source}: `answer` of query `{name}` must be a text or a list of texts; got "
                f"{json.dumps(answer)[:80]}. Write the texts alone."
            )
        if answers:
            found[name] = answers
    return found


def _contains(written: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not written
    spans = range(len(written) - len(wanted) + 1)
    return any(written[i : i + len(wanted)] == wanted for i in spans)


def _overlap(written: Sequence[str], wanted: Sequence[str]) -> tuple[float, float, float]:
    if not written and not wanted:  # "The" is nothing but an article: SQuAD counts it as met
        return 1.0, 1.0, 1.0
    common = sum((Counter(written) & Counter(wanted)).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(written), common / len(wanted)
    return precision, recall, 2 * precision * recall / (precision + recall)
