"""Which devices workers get, and what is asked of Ray. Processes are in `test_faults`."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from jobs.conftest import answers, write_log

from ricci_gpu.errors import InputError, MissingDependencyError
from ricci_gpu.jobs import processes, ray_tasks
from ricci_gpu.jobs.devices import find_devices, own_device
from ricci_gpu.jobs.folder import JobFolder


@pytest.fixture
def without_lightning(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)


@pytest.fixture
def two_gpus(monkeypatch, without_lightning):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_devices_without_lightning(two_gpus, caplog):
    with caplog.at_level("INFO"):
        assert find_devices("auto", 1, "float32") == ["cuda:0", "cuda:1"]
    assert caplog.messages == ["Lightning is not installed: devices are found by torch alone"]
    assert find_devices("1", 1, "float32") == ["cuda:0"]
    with pytest.raises(InputError, match="--devices 3: this machine has 2"):
        find_devices("3", 1, "float32")
    with pytest.raises(InputError, match="must be `auto` or a number from 1; got `0`"):
        find_devices("0", 1, "float32")


def test_groups_of_cores_where_there_is_no_gpu(without_lightning, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert find_devices("auto", 2, "float32") == ["cpu"] * 4
    assert find_devices("3", 2, "float32") == ["cpu"] * 3


def test_a_process_takes_the_device_of_its_rank(two_gpus, monkeypatch):
    assert own_device("auto", {"LOCAL_RANK": "1"}) == "cuda:1"
    assert own_device("auto", {"SLURM_LOCALID": "2"}) == "cuda:0"
    assert own_device("auto", {}) == "cuda:0"
    assert own_device("cuda:1", {"LOCAL_RANK": "0"}) == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert own_device("auto", {"LOCAL_RANK": "1"}) == "auto"


def test_devices_by_lightning():
    pytest.importorskip("lightning")
    if torch.cuda.is_available():
        pytest.skip("says what happens on a machine without GPUs")
    cores = len(os.sched_getaffinity(0))
    assert find_devices("auto", 1, "float32") == ["cpu"] * cores
    assert find_devices("2", 1, "float32") == ["cpu", "cpu"]


def test_workers_are_dealt_over_devices(batch, index, tmp_path, two_gpus, monkeypatch):
    options = ["--queries", write_log(tmp_path / "log.tsv", 4), "--index", index]
    assert batch("plan", tmp_path / "job", *options)[0] == 0
    started = []
    monkeypatch.setattr(
        processes, "work_in_processes", lambda folder, places, seconds: started.append(places)
    )
    for options in (["--devices", "auto"], ["--devices", 2, "--workers", 3], ["--workers", 2]):
        assert batch("run", tmp_path / "job", *options)[0] == 1  # nothing was done
    assert started == [["cuda:0", "cuda:1"], ["cuda:0", "cuda:1", "cuda:0"], ["auto", "auto"]]


class LocalRay:
    """Enough of Ray to run its tasks in this process, one of which is lost on the way."""

    def __init__(self, resources: dict[str, float]) -> None:
        self.resources, self.options, self.ran = resources, {}, []

    def is_initialized(self):
        return False

    def init(self, address, log_to_driver):
        self.address = address

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(remote=lambda *a: (function, a))

    def wait(self, waiting, timeout):
        return waiting[:1], waiting[1:]

    def get(self, task):
        function, arguments = task
        self.ran.append(arguments[1:])
        if len(self.ran) == 1:
            raise RuntimeError("the node died")
        return function(*arguments)


def test_ray_workers(batch, index, tmp_path, monkeypatch, caplog):
    options = ["--queries", write_log(tmp_path / "log.tsv", 4), "--index", index]
    job = tmp_path / "job"
    assert batch("plan", job, *options, "--threads", 2)[0] == 0
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match="`--launcher ray` needs the package `ray`"):
        ray_tasks.work_on_ray(JobFolder(job), None, 60.0, None)
    ray = LocalRay({"CPU": 4.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert batch("run", job, "--launcher", "ray", "--ray-address", "auto")[0] == 0
    assert "a worker ended: the node died" in caplog.messages
    assert ray.address == "auto"
    assert ray.options == {"max_retries": -1, "num_cpus": 2, "num_gpus": 0}
    assert ray.ran == [("cpu", 60.0)] * 2
    assert len(answers(job)) == 4


def test_ray_gives_each_worker_a_gpu(batch, index, tmp_path, monkeypatch):
    options = ["--queries", write_log(tmp_path / "log.tsv", 4), "--index", index]
    assert batch("plan", tmp_path / "job", *options)[0] == 0
    ray = LocalRay({"CPU": 16.0, "GPU": 1.0})
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RuntimeError, match="the node died"):  # its only worker, and rows are left
        ray_tasks.work_on_ray(JobFolder(tmp_path / "job"), None, 60.0, None)
    assert ray.options == {"max_retries": -1, "num_cpus": 1, "num_gpus": 1}
    assert ray.ran == [("cuda", 60.0)]
