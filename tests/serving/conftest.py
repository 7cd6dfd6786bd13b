import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from ricci_gpu.serving.app import create_app
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.service import Service
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.worker import ThreadWorker


async def until(holds, seconds=10.0):
    """Wait for a condition that another task brings about."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.fixture
def run():
    """Run a coroutine to its end, within a time."""

    def call(work, seconds=20.0):
        async def within():
            async with asyncio.timeout(seconds):
                return await work

        return asyncio.run(within())

    return call


@pytest.fixture
def serve(words):
    """A running server in this process, and a client of it: ``async with serve() as (c, s)``.

    ``engine`` replaces the engine of the only worker; keyword arguments are settings.
    """

    @asynccontextmanager
    async def running(engine=None, key=None, **settings):
        chosen = ServeSettings(**settings)
        configs = Presets(chosen.presets, chosen.overrides).configs
        first = next(iter(configs.values()))
        made = engine if engine is not None else Engine(first, encoder=words)
        service = Service(chosen, [ThreadWorker(lambda: made, configs)])
        app = create_app(chosen, service)
        await service.start()
        await until(lambda: service.ready)
        transport = httpx.ASGITransport(app=app)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", headers=headers
        ) as client:
            try:
                yield client, service
            finally:
                await service.stop()

    return running


@pytest.fixture
def ask(serve):
    """One request to a server that lives as long as the test; the response."""
    with asyncio.Runner() as runner:
        servers = {}

        def call(path, body, **settings):
            name = repr(settings)
            if name not in servers:
                servers[name] = serve(**settings)
                servers[name].client, _ = runner.run(servers[name].__aenter__())
            # not httpx's own JSON, which takes no lone surrogates
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return runner.run(servers[name].client.post(path, content=content))

        yield call
        for server in servers.values():
            runner.run(server.__aexit__(None, None, None))
