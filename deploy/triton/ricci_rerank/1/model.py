"""Texts: a query with its documents per row of a request."""

import json

import triton_python_backend_utils as pb_utils

from ricci_gpu.errors import RicciError
from ricci_gpu.serving.triton import TritonRanker, dropped, texts


class TritonPythonModel:
    """Ranks all requests of a batch together; each fails for itself."""

    def initialize(self, args):
        self.ranker = TritonRanker(args, json.loads(args["model_config"])["parameters"])
        self.family = pb_utils.MetricFamily(  # must outlive its metrics
            name="ricci_dropped_documents",
            description="Documents that the filter dropped",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.dropped = self.family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        outcomes = self.ranker.rank([self.tasks(request) for request in requests])
        self.dropped.increment(sum(map(dropped, outcomes)))
        return [
            self.response(request, rows) for request, rows in zip(requests, outcomes, strict=True)
        ]

    def tasks(self, request):
        query, documents = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("QUERY", "DOCUMENTS")
        )
        return [
            self.ranker.task(texts(one)[0], texts(many))
            for one, many in zip(query, documents, strict=True)
        ]

    def response(self, request, rows):
        top_n = pb_utils.get_input_tensor_by_name(request, "TOP_N")
        try:
            arrays = self.ranker.outputs(
                rows, None if top_n is None else int(top_n.as_numpy().max())
            )
        except RicciError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(*each) for each in arrays.items()])
