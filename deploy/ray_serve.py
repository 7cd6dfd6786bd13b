"""The engine in Ray Serve (``pip install "ray[serve]"``): ``serve run deploy.ray_serve:app``.

POST / {"query": ..., "documents": [...]}. For those who run Ray already.
"""

from typing import Any

from ray import serve

from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.scores import plain
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
    async def rank(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        config, key = self.choice.config, self.choice.key
        tasks = [Task(config, key, str(b["query"]), tuple(b["documents"])) for b in bodies]
        return [plain(outcome, config) for outcome in self.engine.rank(tasks)]

    async def __call__(self, request: Any) -> dict[str, Any]:
        result: dict[str, Any] = await self.rank(await request.json())
        return result


app = Rerank.bind()
