"""Vectors: a query with its documents per request, whose batch dimension is 1."""

import json

import triton_python_backend_utils as pb_utils

from ricci_gpu.errors import InputError, RicciError
from ricci_gpu.serving.triton import TritonRanker, dropped

INPUTS = ("QUERY_EMBEDDING", "EMBEDDINGS", "QUERY_TOKENS", "TOKENS", "TOKEN_COUNTS")


class TritonPythonModel:
    """Ranks all requests of a batch together; each fails for itself."""

    def initialize(self, args):
        self.ranker = TritonRanker(args, json.loads(args["model_config"])["parameters"])
        self.family = pb_utils.MetricFamily(  # must outlive its metrics
            name="ricci_dropped_documents_of_vectors",
            description="Documents that the filter dropped",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.dropped = self.family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        responses = [None] * len(requests)
        tasks = {}
        for place, request in enumerate(requests):
            try:
                tasks[place] = [self.task(request)]
            except RicciError as error:
                responses[place] = _failed(error)
        outcomes = self.ranker.rank(list(tasks.values()))
        self.dropped.increment(sum(map(dropped, outcomes)))
        for place, rows in zip(tasks, outcomes, strict=True):
            responses[place] = self.response(requests[place], rows)
        return responses

    def task(self, request):
        arrays = {}
        for name in INPUTS:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            array = None if tensor is None else tensor.as_numpy()
            if array is not None and len(array) != 1:
                raise InputError(f"the batch dimension of {name} must be 1; got {len(array)}.")
            arrays[name] = None if array is None else array[0]
        return self.ranker.task_of_vectors(arrays)

    def response(self, request, rows):
        top_n = pb_utils.get_input_tensor_by_name(request, "TOP_N")
        try:
            arrays = self.ranker.outputs(
                rows, None if top_n is None else int(top_n.as_numpy().max())
            )
        except RicciError as error:
            return _failed(error)
        return pb_utils.InferenceResponse([pb_utils.Tensor(*each) for each in arrays.items()])


def _failed(error):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
