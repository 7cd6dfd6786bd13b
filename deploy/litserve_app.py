"""The engine behind LitServe (``pip install litserve``): run this file.

POST /predict {"query": ..., "documents": [...]}. LitServe batches by the number of requests and
answers a body that breaks a rule with 500; `ricci-gpu serve` does neither.
"""

from typing import Any

import litserve

from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.scores import plain
from ricci_gpu.serving.tasks import Outcome, Task


class RerankAPI(litserve.LitAPI):
    """Ranks all requests of a batch together."""

    def setup(self, device: str) -> None:
        presets = Presets(["default"], [f"runtime.device={device}"])
        self.choice = presets.choose()
        self.engine = Engine(self.choice.config)
        self.engine.warm_up(presets.configs)

    def decode_request(self, request: dict[str, Any]) -> Task:
        documents = tuple(map(str, request["documents"]))
        return Task(self.choice.config, self.choice.key, str(request["query"]), documents)

    def predict(self, tasks: list[Task]) -> list[Outcome]:
        return self.engine.rank(tasks)

    def encode_response(self, outcome: Outcome) -> dict[str, Any]:
        return plain(outcome, self.choice.config)


if __name__ == "__main__":
    api = RerankAPI(max_batch_size=64, batch_timeout=0.005)
    litserve.LitServer(api, accelerator="auto").run(host="127.0.0.1", port=8000)
