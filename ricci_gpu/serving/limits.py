"""Reads a request body, within limits."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from ricci_gpu.serving.failures import Refusal, invalid
from ricci_gpu.serving.settings import ServeSettings

MIB = 1 << 20


async def read_body(
    stream: AsyncIterator[bytes], content_length: str | None, settings: ServeSettings
) -> bytes:
    """The body, read only as far as it may be long.

    Raises:
        Refusal: 413, when it is longer.
    """
    most = int(settings.max_body_mib * MIB)
    if content_length is not None and content_length.isdigit() and int(content_length) > most:
        raise _too_large(settings)
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        size += len(part)
        if size > most:
            raise _too_large(settings)
        parts.append(part)
    return b"".join(parts)


def parse_json(body: bytes, settings: ServeSettings) -> dict[str, Any]:
    """The JSON object of the body; its null fields are left out, as if they had not been sent.

    Raises:
        Refusal: no JSON, no object, a NaN, or too many levels.
    """
    try:
        tree = _tree(body)
    except RecursionError:
        raise _too_deep(settings) from None
    except ValueError as error:  # also UnicodeDecodeError, and integers of thousands of digits
        raise invalid(f"the body must be JSON in UTF-8: {str(error)[:200]}.") from None
    if not isinstance(tree, dict):
        raise invalid(f"the body must be a JSON object; got {type(tree).__name__}.")
    if _deeper_than(tree, settings.max_nesting):
        raise _too_deep(settings)
    return {key: value for key, value in tree.items() if value is not None}


def _tree(body: bytes) -> Any:
    """What the body holds. The fast reader refuses halves of characters, which clients do send."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body, parse_constant=_no_constant)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _deeper_than(tree: Any, levels: int) -> bool:
    level = [tree]
    for _ in range(levels):
        below: list[Any] = []
        for each in level:
            children = each.values() if isinstance(each, Mapping) else each
            below += [child for child in children if isinstance(child, dict | list)]
        if not below:
            return False
        level = below
    return True


def _too_large(settings: ServeSettings) -> Refusal:
    return Refusal(
        413,
        f"the body must have at most {settings.max_body_mib:g} MiB. Send fewer documents at once.",
    )


def _too_deep(settings: ServeSettings) -> Refusal:
    return invalid(f"the body must have at most {settings.max_nesting} levels of nesting.")
