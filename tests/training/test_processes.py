"""Whole runs of the command in processes of their own: killed, and on several devices."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("lightning")
pytest.importorskip("faiss")
pytest.importorskip("ir_measures")

pytestmark = pytest.mark.slow

PROGRAM = Path(sys.executable).with_name("ricci-gpu")
COMMAND = [str(PROGRAM), "train", "late-interaction", "--data", "pairs"]
COMMAND += ["--width", "8", "--batch", "4", "--accelerator", "cpu", "--patience", "50"]


@pytest.fixture
def start(tiny_model, data, tmp_path):
    """Starts the command with some more arguments."""
    environment = os.environ | {"RICCI_GPU_DATA": str(data), "OMP_NUM_THREADS": "1"}

    def begin(*arguments):
        fixed = ["--base", str(tiny_model), "--cache", str(tmp_path / "cache")]
        return subprocess.Popen(
            [*COMMAND, *fixed, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return begin


def finished(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def weights(out):
    return (out / "model.safetensors").read_bytes()


def test_a_killed_command_goes_on_to_the_same_weights(start, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finished(start("--epochs", "40", "--out", str(whole)))
    process = start("--epochs", "40", "--out", str(killed))
    deadline = time.monotonic() + 120
    while not (killed / "run" / "checkpoints" / "last.ckpt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (killed / "model.safetensors").exists()
    finished(start("--epochs", "40", "--out", str(killed), "--resume"))
    assert weights(killed) == weights(whole)


def test_two_devices_share_the_batches_and_one_writes(start, tmp_path):
    out = tmp_path / "two"
    arguments = ["--epochs", "2", "--devices", "2", "--strategy", "ddp", "--out", str(out)]
    output = finished(start(*arguments))
    documents = [line for line in output.splitlines() if line.startswith('{"model"')]
    assert len(documents) == 1
    assert json.loads(documents[0])["best"]["epoch"] in (1, 2)
    assert weights(out)
