"""What the server counts, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TOKENS = tuple(1000 * size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512))


class Metrics:
    """One registry per server, so that two in a process do not meet."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "ricci_requests", "Requests answered", ["route", "code"], registry=registry
        )
        self.seconds = Histogram(
            "ricci_request_seconds",
            "From the body to the answer",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.queued = Histogram(
            "ricci_queue_seconds", "Waiting for a batch", buckets=SECONDS, registry=registry
        )
        self.computed = Histogram(
            "ricci_compute_seconds", "Ranking a batch", buckets=SECONDS, registry=registry
        )
        self.batch_requests = Histogram(
            "ricci_batch_requests", "Requests per batch", buckets=SIZES, registry=registry
        )
        self.batch_pairs = Histogram(
            "ricci_batch_pairs", "Documents per batch", buckets=SIZES, registry=registry
        )
        self.batch_tokens = Histogram(
            "ricci_batch_tokens", "Tokens per batch, estimated", buckets=TOKENS, registry=registry
        )
        self.documents = Counter(
            "ricci_documents", "Documents by what the filter did", ["kept"], registry=registry
        )
        self.cut = Counter("ricci_cut_documents", "Documents that were cut", registry=registry)
        self.cache_hits = Counter("ricci_cache_hits", "Answers from the cache", registry=registry)
        self.restarts = Counter("ricci_worker_restarts", "Workers replaced", registry=registry)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A gauge that asks for its value when it is read."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)
