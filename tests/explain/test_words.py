import pytest

from ricci_gpu.explain.words import words_of


def spelled(text, pieces):
    words = words_of(text, pieces)
    assert sorted(token for word in words for token in word.tokens) == list(range(len(pieces)))
    assert all(word.text == text[word.start : word.stop] for word in words)
    return [word.text for word in words]


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("Photosynthesis works", ["photos", "##ynth", "##esis", "works"], "Photosynthesis works"),
        (
            "well-known, isn't",
            ["well", "-", "known", ",", "isn", "'", "t"],
            "well - known , isn ' t",
        ),
        ("Naïve GRÜSSE", ["naive", "gr", "##uss", "##e"], "Naïve GRÜSSE"),
        ("a  b\n\tc", ["a", "b", "c"], "a b c"),
        ("hello world", ["▁hello", "▁wor", "ld"], "hello world"),
        ("hello world", ["hello", "Ġwor", "ld"], "hello world"),
        ("東京です", ["東", "京", "て", "##す"], "東 京 です"),
        ("½ cup", ["1", "\u2044", "2", "cup"], "½ cup"),
    ],
)
def test_pieces_are_joined_to_the_words_of_the_text(text, pieces, expected):
    assert spelled(text, pieces) == expected.split(" ")


def test_an_unknown_symbol_stands_for_the_characters_up_to_the_next_piece():
    assert spelled("so 😀😀 nice", ["so", "[UNK]", "nice"]) == ["so", "😀😀", "nice"]
    assert spelled("end 😀", ["end", "[UNK]"]) == ["end", "😀"]
    assert spelled("😀", ["[UNK]"]) == ["😀"]


def test_no_text_and_no_pieces():
    assert words_of("", []) == []
    assert words_of("some text", []) == []
    assert [word.text for word in words_of("", ["ghost"])] == [""]


def test_what_was_cut_off_is_in_no_word():
    assert words_of("one two three", ["one", "two"])[-1].stop == len("one two")


def test_punctuation_has_no_letters():
    assert [word.has_letters for word in words_of("yes !", ["yes", "!"])] == [True, False]
