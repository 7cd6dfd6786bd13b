"""Build a small judged collection in the BEIR layout from text that every Python ships.

    python examples/python_docs/build.py OUT

writes `corpus.jsonl` (the language reference of `pydoc_data.topics` and the docstrings of the
standard library), `queries.jsonl` and `qrels.tsv` (both from `questions.jsonl`, beside this file).

Docstrings differ between Python versions, so the questions are judged on names: `bisect.insort`
stands for all passages of that docstring, `topic:assignment` for all passages of that topic, and
`topic:string-methods ~ str.partition(` for the passages of a long text that hold the words after
the `~`. A passage is relevant when a developer could go on with it alone: it explains the answer,
or it is an overview that names the right tool for the task.
"""

import argparse
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType
from typing import Any

QUESTIONS = Path(__file__).with_name("questions.jsonl")

# Modules that import without side effects on every platform. Those that a Python lacks (tomllib
# before 3.11, ssl or lzma in some builds) are skipped and named in the line that `main` prints.
MODULE_NAMES = """
abc argparse array ast asyncio asyncio.subprocess atexit base64 binascii bisect builtins bz2
cProfile calendar cmath cmd code codecs codeop collections collections.abc colorsys compileall
concurrent.futures configparser contextlib contextvars copy copyreg csv ctypes dataclasses
datetime dbm decimal difflib dis doctest email email.header email.headerregistry email.message
email.parser email.policy email.utils enum errno faulthandler filecmp fileinput fnmatch fractions
ftplib functools gc getopt getpass gettext glob graphlib gzip hashlib heapq hmac html
html.parser http http.client http.cookiejar http.cookies http.server imaplib importlib
importlib.abc importlib.machinery importlib.metadata importlib.resources importlib.util inspect io
ipaddress itertools json json.decoder json.encoder keyword linecache locale logging
logging.config logging.handlers lzma mailbox marshal math mimetypes mmap modulefinder
multiprocessing multiprocessing.connection multiprocessing.managers multiprocessing.pool
multiprocessing.shared_memory netrc numbers operator optparse os os.path pathlib pdb pickle
pickletools pkgutil platform plistlib poplib pprint profile pstats py_compile pyclbr pydoc queue
quopri random re reprlib runpy sched secrets select selectors shelve shlex shutil
signal site smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct
subprocess symtable sys sysconfig tabnanny tarfile tempfile textwrap threading time timeit token
tokenize tomllib trace traceback tracemalloc types typing unicodedata unittest unittest.mock
urllib.error urllib.parse urllib.request urllib.robotparser uuid venv warnings wave weakref
webbrowser wsgiref.handlers wsgiref.headers wsgiref.simple_server wsgiref.util wsgiref.validate
xml.dom xml.dom.minidom xml.dom.pulldom xml.etree.ElementTree xml.sax xml.sax.handler
xml.sax.saxutils xml.sax.xmlreader xmlrpc.client xmlrpc.server zipapp zipfile zipimport zlib
zoneinfo
"""

MIN_WORDS = 8  # a shorter docstring answers nothing
MAX_WORDS = 180  # of a passage
TAIL_WORDS = 40  # a shorter last passage is joined to the one before it

PARAGRAPH_BORDER = re.compile(r"\n\s*\n")
# Start of a line that the next line underlines, or of the mark before footnotes.
HEADING = re.compile(r"^(?=.+\n([*=\-~])\1+$|-\[ Footnotes \]-$)", re.MULTILINE)
UNDERLINED = re.compile(r"\A.+\n([*=\-~])\1+$", re.MULTILINE)


def words(text: str) -> int:
    return len(text.split())


def lines_in_groups(paragraph: str) -> list[str]:
    """The paragraph, or where it exceeds MAX_WORDS words its lines in groups of at most that."""
    groups: list[str] = []
    for line in paragraph.splitlines():
        if groups and words(groups[-1]) + words(line) <= MAX_WORDS:
            groups[-1] += "\n" + line
        else:
            groups.append(line)
    return groups


def split_passages(text: str) -> list[str]:
    """Split at paragraph borders into passages of at most about MAX_WORDS words.

    A heading stays with the paragraph that follows it, and a tail of fewer than TAIL_WORDS words
    with the passage before it.
    """
    passages: list[str] = []
    heading = ""
    for paragraph in PARAGRAPH_BORDER.split(text.strip()):
        if UNDERLINED.fullmatch(paragraph):
            heading += paragraph + "\n\n"
            continue
        for piece in lines_in_groups(heading + paragraph):
            if passages and words(passages[-1]) + words(piece) <= MAX_WORDS:
                passages[-1] += "\n\n" + piece
            else:
                passages.append(piece)
        heading = ""
    if len(passages) > 1 and words(passages[-1]) < TAIL_WORDS:
        tail = passages.pop()
        passages[-1] += "\n\n" + tail
    return passages


def topic_texts() -> Iterator[tuple[str, str]]:
    """(topic, text) without the sections that a smaller topic holds too.

    The reference repeats itself: `compound` holds all of `if`, `for`, `try`, ...
    """
    seen: set[str] = set()
    for topic in sorted(topics, key=lambda name: (len(topics[name]), len(name), name)):
        text = topics[topic].strip()
        borders = sorted({0, len(text), *(match.start() for match in HEADING.finditer(text))})
        kept = []
        for start, end in pairwise(borders):
            section = text[start:end].strip()
            body = UNDERLINED.sub("", section).strip()
            if body not in seen:
                seen.add(body)
                kept.append(section)
        if kept:
            yield topic, "\n\n".join(kept)


def belongs(module: ModuleType, attribute: str, member: Any) -> bool:
    """Whether a public member is the module's own, not merely imported or patched into it."""
    home = getattr(member, "__module__", None) or module.__name__
    if home.partition(".")[0] not in sys.stdlib_module_names:
        return False  # test runners and torch replace some functions of the standard library
    if module.__name__ == "builtins":
        return True
    if hasattr(module, "__all__"):
        return attribute in module.__all__
    return home == module.__name__ or home.startswith("_")  # _heapq, _io, ... are accelerators


def kind_of(member: Any, owner: Any) -> str:
    if inspect.isclass(member):
        return "exception" if issubclass(member, BaseException) else "class"
    if inspect.isdatadescriptor(member):
        return "attribute"
    if inspect.isclass(owner):
        return "method"
    return "function" if callable(member) else "object"


def docstrings_of_members(name: str, owner: Any) -> Iterator[tuple[str, str, str]]:
    """(qualified name, kind, docstring) of the public members of a module or class."""
    for attribute, member in sorted(vars(owner).items()):
        if attribute.startswith("_") or inspect.ismodule(member):
            continue
        if inspect.ismodule(owner) and not belongs(owner, attribute, member):
            continue
        # vars() gives raw members: look through static and class methods for the docstring.
        member = getattr(member, "__func__", member)
        doc = getattr(member, "__doc__", None)
        if not isinstance(doc, str) or doc == type(member).__doc__:
            continue  # none, or a plain value that shows the docstring of its type
        qualified = attribute if name == "builtins" else f"{name}.{attribute}"
        yield qualified, kind_of(member, owner), inspect.cleandoc(doc).strip()
        if inspect.isclass(member) and inspect.ismodule(owner):
            yield from docstrings_of_members(qualified, member)


def available_modules() -> tuple[dict[str, ModuleType], list[str]]:
    """The modules of MODULE_NAMES by name, and the names of those that this Python lacks."""
    found, lacking = {}, []
    for name in MODULE_NAMES.split():
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            lacking.append(name)
    return found, lacking


def docstrings(modules: dict[str, ModuleType]) -> dict[str, tuple[str, str]]:
    """Qualified name -> (kind, docstring), sorted; each text once, under its shortest name."""
    name_of: dict[str, tuple[int, str, str]] = {}
    for module_name, module in modules.items():
        # Under the listed name: `os.path` calls itself posixpath or ntpath.
        own = (module_name, "module", inspect.cleandoc(module.__doc__ or "").strip())
        for name, kind, text in [own, *docstrings_of_members(module_name, module)]:
            if words(text) >= MIN_WORDS:
                rank = (len(name), name, kind)
                name_of[text] = min(rank, name_of.get(text, rank))
    return dict(sorted((name, (kind, text)) for text, (_, name, kind) in name_of.items()))


def build_corpus() -> list[dict[str, str]]:
    """The passages as BEIR documents: `_id`, `title`, `text`.

    A text of one passage has its name as id, a longer one `name#1`, `name#2`, ... In a fresh
    process the result depends on the Python version and platform only; packages that replace
    functions of the standard library hide those few from it.
    """
    if sys.flags.optimize >= 2:
        raise RuntimeError(
            "The corpus is made of docstrings, and Python runs with -OO (or PYTHONOPTIMIZE=2), "
            "which strips them. Run without it."
        )
    texts = [(f"topic:{topic}", topic, text) for topic, text in sorted(topic_texts())]
    for name, (kind, text) in docstrings(available_modules()[0]).items():
        texts.append((name, f"{name} {kind}", text))
    corpus = []
    for name, title, text in texts:
        passages = split_passages(text)
        for number, passage in enumerate(passages, start=1):
            passage_id = f"{name}#{number}" if len(passages) > 1 else name
            corpus.append({"_id": passage_id, "title": title, "text": passage})
    return corpus


def read_questions() -> list[dict[str, Any]]:
    """The judged questions: `_id`, `text`, and `relevant`, a list of names."""
    with QUESTIONS.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def resolve(judged: str, corpus: Iterable[dict[str, str]]) -> list[str]:
    """The passage ids of a judged name, `NAME` or `NAME ~ WORDS THAT THE PASSAGE HOLDS`."""
    name, _, phrase = judged.partition(" ~ ")
    return [
        passage["_id"]
        for passage in corpus
        if passage["_id"].partition("#")[0] == name and phrase in " ".join(passage["text"].split())
    ]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write atomically: a reader sees the old file or the whole new one."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
    os.replace(part, path)


def main(out: Path) -> None:
    """Write the collection to the folder `out` and print one line about it."""
    corpus, questions = build_corpus(), read_questions()
    judgements, missing = [], 0
    for question in questions:
        ids: dict[str, None] = {}  # an ordered set: two judged names may share a passage
        for judged in question["relevant"]:
            found = resolve(judged, corpus)
            missing += not found
            ids.update(dict.fromkeys(found))
        judgements += [f"{question['_id']}\t{passage_id}\t1" for passage_id in ids]

    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / "corpus.jsonl", (json.dumps(row, ensure_ascii=False) for row in corpus))
    queries = ({"_id": question["_id"], "text": question["text"]} for question in questions)
    write_lines(out / "queries.jsonl", (json.dumps(row, ensure_ascii=False) for row in queries))
    write_lines(out / "qrels.tsv", ["query-id\tcorpus-id\tscore", *judgements])
    lacking = available_modules()[1]
    print(
        f"{out}: {len(corpus)} passages, {len(questions)} questions, {len(judgements)} judgements; "
        f"judged names missing in this Python: {missing}"
        + (f"; modules missing: {', '.join(lacking)}" if lacking else "")
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the judged collection of Python docs.")
    parser.add_argument("out", type=Path, help="folder to write to; made when it does not exist")
    main(parser.parse_args().out)
