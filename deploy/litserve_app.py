"""The engine behind LitServe (``pip install litserve``): run this file, and POST to /predict what
Cohere's clients send. LitServe batches by the number of requests.
"""

from typing import Any

import litserve
from fastapi import HTTPException

from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.plain import plain, read_task
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.tasks import Outcome, Task


class RerankAPI(litserve.LitAPI):
    """Ranks all requests of a batch together."""

    def setup(self, device: str) -> None:
        presets = Presets(["default"], [f"runtime.device={device}"])
        self.choice = presets.choose()
        self.engine = Engine(self.choice.config)
        self.engine.warm_up(presets.configs)

    def decode_request(self, request: dict[str, Any]) -> Task:
        try:
            return read_task(request, self.choice)
        except Refusal as error:
            raise HTTPException(400, error.message) from None

    def predict(self, tasks: list[Task]) -> list[Outcome]:
        return self.engine.rank(tasks)

    def encode_response(self, outcome: Outcome) -> dict[str, Any]:
        return plain(outcome, self.choice.config)


if __name__ == "__main__":
    litserve.LitServer(RerankAPI(max_batch_size=64, batch_timeout=0.005)).run(host="127.0.0.1")
