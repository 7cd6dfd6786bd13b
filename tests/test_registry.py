from dataclasses import dataclass
from typing import Any, Literal

import pytest

from ricci_gpu.errors import SettingError, suggest
from ricci_gpu.registry import Registry, build_settings

# Settings come from YAML, where anything may stand: the library refuses it, not the test run.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@dataclass(frozen=True)
class Blur:
    width: float = 0.5
    steps: int = 3
    limit: int | None = None
    rule: Literal["ge", "le"] = "ge"
    solver: str | dict[str, Any] = "exact"
    trace: bool = False


@dataclass(frozen=True)
class Nothing:
    pass


@pytest.fixture
def registry():
    registry = Registry("filter")
    registry.register("blur")(Blur)
    registry.register("nothing")(Nothing)
    return registry


def test_variants_are_built_by_name(registry):
    assert registry.names() == ["blur", "nothing"]
    assert registry.variant("blur") is Blur
    assert Blur.name == "blur"
    assert registry.build("blur", {"width": 2, "limit": 4}) == Blur(width=2, limit=4)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("width", "0.5", "float"),
        ("width", True, "float"),
        ("width", None, "float"),
        ("steps", 3.0, "int"),
        ("steps", True, "int"),
        ("limit", "none", r"int \| None"),
        ("solver", 3, r"str \| dict"),
        ("trace", 1, "bool"),
        ("trace", "yes", "bool"),
        ("rule", 1, "Literal"),
    ],
)
def test_wrong_types_are_refused(registry, key, value, wanted):
    with pytest.raises(SettingError, match=rf"filter `blur`: `{key}` must be .*{wanted}.*; got "):
        registry.build("blur", {key: value})


@pytest.mark.parametrize(
    "settings",
    [{"width": 1}, {"limit": None}, {"limit": 2}, {"solver": {"type": "x"}}, {"rule": "le"}],
)
def test_right_types_are_taken(registry, settings):
    built = registry.build("blur", settings)
    assert built == Blur(**settings)
    assert isinstance(built.width, float)  # so that 1 and 1.0 are printed alike


def test_unknown_settings_are_refused_with_the_nearest_name(registry):
    with pytest.raises(
        SettingError, match=r"^filter `blur` has no setting `widht`\. Did you mean `width`\?$"
    ):
        registry.build("blur", {"widht": 1.0})
    with pytest.raises(SettingError, match=r"Known: `limit`, `rule`, `solver`, `steps`, `trace`"):
        registry.build("blur", {"zzz": 1.0})
    with pytest.raises(SettingError, match=r"has no setting `1`\. Known: "):
        registry.build("blur", {1: 2})
    with pytest.raises(SettingError, match=r"`nothing` has no setting `a`\. It takes no settings"):
        registry.build("nothing", {"a": 1})


def test_unknown_variants_are_refused_with_the_nearest_name(registry):
    with pytest.raises(SettingError, match=r"^unknown filter `blurr`\. Did you mean `blur`\?$"):
        registry.build("blurr", {})
    for name in (None, 3, ["blur"]):
        with pytest.raises(SettingError, match=r"^unknown filter .*(Known: `blur`|Did you mean)"):
            registry.build(name, {})


def test_registering_twice_or_no_dataclass_is_refused(registry):
    with pytest.raises(SettingError, match=r"filter `blur` is registered twice; rename one"):
        registry.register("blur")(Blur)
    with pytest.raises(SettingError, match=r"filter `plain` must be a dataclass; got <class"):
        registry.register("plain")(object)


def test_settings_without_init_are_no_settings():
    from dataclasses import field

    @dataclass(frozen=True)
    class Part:
        shown: int = 1
        hidden: int = field(default=0, init=False)

    with pytest.raises(SettingError, match=r"part has no setting `hidden`"):
        build_settings(Part, "part", {"hidden": 1})


def test_suggestions():
    assert suggest("tau_percentle", ["tau_percentile", "eta"]) == "Did you mean `tau_percentile`?"
    assert suggest("x", ["b", "a"]) == "Known: `a`, `b`."
