"""Errors of the library. Every message states the rule, what was received, and the fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class RicciError(Exception):
    """Base of every error that this library raises on purpose."""


class SettingError(RicciError, ValueError):
    """A setting is unknown or out of its range."""


class InputError(RicciError, ValueError):
    """Data given to the library breaks a stated rule."""


class MissingDependencyError(RicciError, ImportError):
    """An optional package is needed by the chosen variant and is not installed."""


class QueryError(RicciError):
    """Strict mode: some queries of a batch could not be treated normally."""


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known spelling, or all of them.

    >>> suggest("tau_percentle", ["tau_percentile", "eta"])
    'Did you mean `tau_percentile`?'
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean `{near[0]}`?"
    return "Known: " + ", ".join(f"`{name}`" for name in names) + "."


def missing(package: str, purpose: str, extra: str) -> MissingDependencyError:
    """The error for an optional package that the chosen variant needs."""
    return MissingDependencyError(
        f"{purpose} needs the package `{package}`, which is not installed. "
        f'Install it with: pip install "ricci-gpu[{extra}]"'
    )
