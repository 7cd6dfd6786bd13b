"""Serving: the rerank endpoint that the clients of other servers already speak to.

What belongs here: the dialects of other servers as translations to one request (`dialects`), the
queue that packs requests of many users into batches (`batcher`), the processes that rank them
(`worker`, `engine`), and what keeps a public port safe (`limits`, `auth`). How a query is ranked
does not: that is `ricci_gpu.pipeline`. `engine.Engine` knows nothing of HTTP, so that other
servers (``deploy/``) wrap the same class.
"""
