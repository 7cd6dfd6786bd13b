"""Settings of the server, frozen once read."""

import math
from dataclasses import dataclass, fields

from ricci_gpu.errors import SettingError

MOST_DOCUMENTS = 10_000  # per request, whatever the settings say


@dataclass(frozen=True)
class ServeSettings:
    """How the server binds, batches and refuses.

    Args:
        host, port: loopback by default: what listens on a network should have keys.
        presets: names of presets, or YAML files, that requests may choose; the first is taken by
            requests that name none. All of them share one model.
        overrides: ``section.setting=value`` strings, applied to each preset.
        devices: one worker each; empty for one per GPU, or one on the CPU.
        threads: of torch, per worker on a CPU.
        max_wait_ms: how long a request may wait for company while a worker is free.
        batch_requests, batch_pairs, batch_tokens: what a batch holds at most (a single request may
            exceed the last two).
        batch_target_s: what a batch should take at most, at the pace of late, for everybody in it
            waits for all; a third of the work that waits where that is more.
        queue_requests: requests that may wait; more are refused with 429.
        deadline_s: of a request that names none, and the longest that one may name.
        batch_s: a worker that takes longer for a batch counts as wedged and is replaced.
        max_body_mib, max_documents, max_nesting: of a request.
        max_chars: of a query or a document; what is longer is cut, with a warning.
        cache_entries: answers kept, by content; 0 for none.
        keys: bearer keys, of which a request must bring one; empty for none.
        log_texts: write queries to the log; without it, no text of a request is logged.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    presets: tuple[str, ...] = ("default", "ricci_filtration")
    overrides: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    threads: int = 1
    max_wait_ms: float = 5.0
    batch_requests: int = 64
    batch_pairs: int = 4096
    batch_tokens: int = 262_144
    batch_target_s: float = 1.0
    queue_requests: int = 1024
    deadline_s: float = 30.0
    batch_s: float = 120.0
    max_body_mib: float = 32.0
    max_documents: int = 1000
    max_nesting: int = 16
    max_chars: int = 32_768
    cache_entries: int = 0
    keys: tuple[str, ...] = ()
    log_texts: bool = False

    def __post_init__(self) -> None:
        if not self.presets:
            raise SettingError("a server needs at least one preset; got none. Name one.")
        may_be_zero = ("max_wait_ms", "cache_entries", "port")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                raise SettingError(f"`{each.name}` must be a finite number; got {value}.")
            if value < 0 or (value == 0 and each.name not in may_be_zero):
                least = "at least 0" if each.name in may_be_zero else "greater than 0"
                raise SettingError(f"`{each.name}` must be {least}; got {value}.")
        if self.max_documents > MOST_DOCUMENTS:
            raise SettingError(
                f"`max_documents` must be at most {MOST_DOCUMENTS}; got {self.max_documents}. "
                "Longer lists are a job for `ricci-gpu batch`."
            )
        if any(len(key) < 8 for key in self.keys):
            raise SettingError("a key must have at least 8 characters. Make a longer one.")
