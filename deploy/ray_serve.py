"""The engine in Ray Serve (``pip install "ray[serve]"``): ``serve run deploy.ray_serve:app``, and
POST to / what Cohere's clients send. For those who run Ray already.
"""

from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.plain import plain, read_task
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.tasks import Task


@serve.deployment
class Rerank:
    """Ranks all requests of a batch together; on GPUs, give it ``num_gpus`` in its options."""

    def __init__(self, preset: str = "default") -> None:
        presets = Presets([preset])
        self.choice = presets.choose()
        self.engine = Engine(self.choice.config)
        self.engine.warm_up(presets.configs)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    async def rank(self, tasks: list[Task]) -> list[dict[str, Any]]:
        return [plain(outcome, self.choice.config) for outcome in self.engine.rank(tasks)]

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            task = read_task(await request.json(), self.choice)
        except (Refusal, ValueError) as error:  # of this request alone
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(await self.rank(task))


app = Rerank.bind()
