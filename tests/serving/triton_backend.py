"""As much of Triton's ``triton_python_backend_utils`` as our models use."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar

import numpy as np


@dataclass
class Tensor:
    name: str
    array: np.ndarray

    def as_numpy(self):
        return self.array


@dataclass
class TritonError(Exception):
    text: str

    def message(self):
        return self.text


@dataclass
class InferenceRequest:
    tensors: list


@dataclass
class InferenceResponse:
    output_tensors: list = field(default_factory=list)
    error: TritonError | None = None


@dataclass
class Metric:
    value: float = 0

    def increment(self, by):
        self.value += by


@dataclass
class MetricFamily:
    name: str
    description: str
    kind: str
    COUNTER: ClassVar[str] = "counter"

    def Metric(self, labels):
        return Metric()


def get_input_tensor_by_name(request, name):
    return next((each for each in request.tensors if each.name == name), None)


def module():
    made = ModuleType("triton_python_backend_utils")
    for each in (Tensor, TritonError, InferenceRequest, InferenceResponse, MetricFamily):
        setattr(made, each.__name__, each)
    made.get_input_tensor_by_name = get_input_tensor_by_name
    return made
