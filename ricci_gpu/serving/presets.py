"""The configurations that requests may choose from, and how far they may change them.

A request names a preset of the server and may change its filter, and its reranker to one that
loads no model. No path and no model name of a request is ever looked up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ricci_gpu.config import Config
from ricci_gpu.errors import SettingError, suggest
from ricci_gpu.serving.failures import invalid
from ricci_gpu.stages import FILTERS, RERANKERS, Filter, Stage
from ricci_gpu.stages.controls import KeepAll
from ricci_gpu.stages.rerank import KeepOrder, MaxSim

LARGEST_SETTING = 1000  # of numbers in a request: iterations cost the time of others
WITHOUT_MODEL = ("none", "maxsim")  # rerankers that a request may name


@dataclass(frozen=True)
class Choice:
    """What one request is ranked with; equal keys mean equal configurations."""

    preset: str
    key: str
    config: Config


class Presets:
    """The presets of a server, by name.

    Args:
        sources: names of presets, or YAML files, which are then called by their stems.
        overrides: ``section.setting=value`` strings, applied to each.

    Raises:
        SettingError: a preset that does not exist, or two that want different models.
    """

    def __init__(self, sources: Sequence[str], overrides: Sequence[str] = ()) -> None:
        self._choices: dict[str, Choice] = {}
        for source in sources:
            name = Path(source).stem
            if name in self._choices:
                raise SettingError(f"two presets are called `{name}`. Rename one of the files.")
            config = Config.load(source, overrides)
            # A client says how many it wants, and gets all documents otherwise.
            config = replace(
                config,
                select=replace(config.select, top_k=None),
                runtime=replace(config.runtime, strict=False),
            )
            self._choices[name] = Choice(name, name, config)
        self.default = Path(sources[0]).stem
        models = {choice.config.model for choice in self._choices.values()}
        if len(models) > 1:
            raise SettingError(
                "all presets of a server share one model, so `model` must be equal in them; got "
                f"{len(models)} different ones. Start a server for each."
            )

    @property
    def configs(self) -> dict[str, Config]:
        """By key, which is the name."""
        return {name: choice.config for name, choice in self._choices.items()}

    def choose(
        self,
        preset: str | None = None,
        filter_settings: Mapping[str, Any] | None = None,
        reranker: str | None = None,
    ) -> Choice:
        """What a request asks for.

        Raises:
            Refusal: an unknown preset, or settings that are impossible or not for requests.
        """
        name = self.default if preset is None else preset
        if name not in self._choices:
            raise invalid(f"unknown preset `{name}`. {suggest(name, self._choices)}")
        choice = self._choices[name]
        if not filter_settings and reranker is None:
            return choice
        try:
            config = replace(
                choice.config,
                filter=_filter(choice.config.filter, filter_settings or {}),
                rerank=_reranker(choice.config.rerank, reranker),
            )
        except SettingError as error:
            raise invalid(str(error)) from error
        return Choice(name, f"{name} {config.filter!r} {config.rerank!r}", config)

    def for_pairs(self, preset: str | None) -> Choice:
        """What scores a pair by itself: the reranker of the preset, or MaxSim, and no filter."""
        choice = self.choose(preset)
        stage = choice.config.rerank
        config = replace(
            choice.config,
            filter=KeepAll(),
            rerank=MaxSim() if isinstance(stage, KeepOrder) else stage,
        )
        return Choice(choice.preset, f"{choice.preset} pairs", config)

    def knows(self, name: str) -> bool:
        return name in self._choices


def _filter(own: Filter, wanted: Mapping[str, Any]) -> Filter:
    """The filter of the preset with changes, or another one with its own defaults."""
    settings = dict(wanted)
    name = settings.pop("type", own.name)
    if settings.get("trace"):
        raise SettingError("`trace` is for `ricci-gpu explain`, not for a server. Leave it out.")
    _require_affordable(settings)
    if name == own.name:
        settings = {key: getattr(own, key) for key in own.__dataclass_fields__} | settings
    return FILTERS.build(name, settings)


def _reranker(own: Stage, wanted: str | None) -> Stage:
    if wanted is None or wanted == own.name:
        return own
    if wanted not in WITHOUT_MODEL:
        raise SettingError(
            f"a request may choose the reranker of its preset, `none` or `maxsim`; got `{wanted}`. "
            "Other models are chosen when the server starts."
        )
    return RERANKERS.build(wanted, {})


def _require_affordable(value: Any) -> None:
    if isinstance(value, Mapping):
        for each in value.values():
            _require_affordable(each)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST_SETTING:
        raise SettingError(
            f"numbers in the settings of a request must be between -{LARGEST_SETTING} and "
            f"{LARGEST_SETTING}; got {value!r}. Use `ricci-gpu rerank` for larger ones."
        )
