"""From the tokens of a model to the words of a text.

A tokenizer lowercases, strips accents and cuts words into pieces; readers want the words as they
stand. The pieces are found again in the text one after the other, and pieces that touch within a
run of letters or digits are one word.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# Marks of pieces: WordPiece, SentencePiece, byte-level BPE.
MARKS = ("##", "\u2581", "\u0120")


@dataclass(frozen=True)
class Word:
    """Characters ``start:stop`` of a text, and the places of its tokens in the token list."""

    text: str
    start: int
    stop: int
    tokens: tuple[int, ...]

    @property
    def has_letters(self) -> bool:
        """False for punctuation."""
        return any(char.isalnum() for char in self.text)


def words_of(text: str, pieces: Sequence[str]) -> list[Word]:
    """The words of ``text`` that ``pieces`` spell, in order; every piece belongs to one.

    A piece that is not found (a symbol that the model does not know) stands for the characters
    up to the next piece that is.
    """
    plain, origin = _plain(text)
    spans = _spans(plain, [_bare(piece) for piece in pieces])
    words: list[Word] = []
    for token, (first, last) in enumerate(spans):
        start = origin[first] if first < len(origin) else len(text)
        stop = origin[last - 1] + 1 if last > first else start
        if words and _continues(text, words[-1], start, stop):
            before = words.pop()
            words.append(
                Word(text[before.start : stop], before.start, stop, (*before.tokens, token))
            )
        else:
            words.append(Word(text[start:stop], start, stop, (token,)))
    return words


def _plain(text: str) -> tuple[str, list[int]]:
    """Lower case without accents, blanks and control characters, and where each char came from."""
    chars: list[str] = []
    origin: list[int] = []
    for place, char in enumerate(text):
        for part in unicodedata.normalize("NFKD", char.lower()):
            if not part.isspace() and unicodedata.category(part) not in ("Mn", "Cc", "Cf"):
                chars.append(part)
                origin.append(place)
    return "".join(chars), origin


def _bare(piece: str) -> str:
    for mark in MARKS:
        if piece != mark and piece.startswith(mark):
            piece = piece[len(mark) :]
    return _plain(piece)[0]


def _spans(plain: str, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Where each piece stands in ``plain``, as (first, last + 1)."""
    spans: list[tuple[int, int]] = []
    unknown: list[int] = []  # pieces waiting for the next one that is found
    at = 0
    for token, piece in enumerate(pieces):
        found = plain.find(piece, at) if piece else -1
        if found < 0 or (found > at and not unknown and not plain.startswith(piece, at)):
            # Without an unknown piece before it, a piece stands right where the last one ended.
            unknown.append(token)
            spans.append((at, at))
            continue
        for waiting in unknown:
            spans[waiting] = (at, found)
        unknown = []
        at = found + len(piece)
        spans.append((found, at))
    for waiting in unknown:
        spans[waiting] = (at, len(plain))
    return spans


def _continues(text: str, word: Word, start: int, stop: int) -> bool:
    if start < word.stop and stop <= word.stop:
        return True  # both pieces come from one character, or wait for the same stretch
    if start != word.stop or start >= len(text):
        return False
    before, after = text[start - 1], text[start]
    return _in_word(before) and _in_word(after)


def _in_word(char: str) -> bool:
    """Letters and digits, but ideographs, which are words of their own."""
    return char.isalnum() and not unicodedata.name(char, "").startswith("CJK ")
