"""Bearer keys, compared in constant time."""

import hmac
from collections.abc import Sequence
from pathlib import Path

from ricci_gpu.errors import SettingError
from ricci_gpu.serving.failures import Refusal

OPEN_TO_ALL = ("/health", "/ready")  # probes bring no keys


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and lines that begin with # do not count."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingError(f"{path} must hold a key per line; it holds none.")
    return keys


def require_key(keys: Sequence[str], path: str, authorization: str | None) -> None:
    """Refuse a request without one of the keys, where there are any.

    Args:
        authorization: the header, decoded as latin-1, as HTTP has it.

    Raises:
        Refusal: 401.
    """
    if not keys or path in OPEN_TO_ALL:
        return
    scheme, _, given = (authorization or "").partition(" ")
    offered = given.strip().encode("latin-1")  # the bytes as they came
    # Every key is compared, so that the time does not tell which one was nearly right.
    matches = [hmac.compare_digest(offered, key.encode("utf-8")) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise Refusal(401, "this server needs a key: send `Authorization: Bearer <key>`")
