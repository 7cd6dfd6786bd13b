from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import yaml

from ricci_gpu.config import Config, preset_folder, preset_names
from ricci_gpu.errors import SettingError
from ricci_gpu.stages import FILTERS, RERANKERS

# Settings come from YAML, where anything may stand: the library refuses it, not the test run.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")

BASE = "ricci_filtration"


def test_presets_load_and_list_only_known_settings():
    assert {"default", "ricci_filtration"} <= set(preset_names())
    for name in preset_names():
        config = Config.load(name)
        assert config.filter.name in FILTERS.names()
        assert config.rerank.name in RERANKERS.names()


def test_default_preset_is_the_code_defaults_written_out():
    assert Config.load("default") == Config() == Config.load()
    tree = yaml.safe_load((preset_folder() / "default.yaml").read_text())
    assert tree == Config().to_tree()


def test_paper_preset():
    config = Config.load("ricci_filtration")
    assert (config.filter.name, config.rerank.name, config.select.top_k) == ("ricci", "maxsim", 5)
    settings = config.to_tree()["filter"]
    published = {"rule": "ge", "percentile": 50.0, "alpha": 0.5, "p": 2.0, "iterations": 20}
    assert published.items() <= settings.items()
    assert (settings["eta"], settings["step"], settings["query_edges"]) == (1.0, 1.0, True)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("override", [(), ("filter.minimum=2", "select.top_k=null")])
def test_yaml_round_trip(tmp_path, name, override):
    config = Config.load(name, override)
    path = tmp_path / "mine.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert Config.load(path) == config
    assert Config.load(str(path)).to_yaml() == config.to_yaml()


@pytest.mark.parametrize("name", FILTERS.names())
def test_every_filter_can_be_named_and_round_trips(tmp_path, name):
    config = Config.load("default", [f"filter.type={name}"])
    assert config.filter == FILTERS.build(name, {})
    path = tmp_path / "mine.yml"
    path.write_text(config.to_yaml())
    assert Config.load(path) == config


def test_a_file_of_the_users_needs_only_the_differences(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("filter:\n  eta: 0.8\nretrieve: {k: 50}\nmodel: {name: 'Grüße'}\n", "utf-8")
    config = Config.load(path, ["runtime.batch_size=3"])
    assert config.filter == FILTERS.build("token_transport", {"eta": 0.8})
    assert (config.retrieve.k, config.runtime.batch_size) == (50, 3)
    assert config.model.name == "Grüße"
    path.write_text("# nothing\n")
    assert Config.load(path) == Config()


def test_overrides_apply_in_order_and_take_yaml_values():
    config = Config.load(
        "default",
        ["select.top_k=3", "select.top_k=null", "runtime.strict=true", "filter.temperature=1e-3"],
    )
    assert (config.select.top_k, config.runtime.strict) == (None, True)
    assert config.filter.temperature == 0.001
    config = Config.load(BASE, ["filter.solver.type=sinkhorn", "filter.solver.epsilon=0.1"])
    assert config.filter.solver == {"type": "sinkhorn", "epsilon": 0.1}


def test_a_new_type_starts_from_its_defaults_wherever_it_stands():
    for overrides in (
        ["filter.type=ricci", "filter.alpha=0.25"],
        ["filter.alpha=0.25", "filter.type=ricci"],
    ):
        assert Config.load("default", overrides).filter == FILTERS.build("ricci", {"alpha": 0.25})
    same = Config.load(BASE, ["filter.type=ricci"])
    assert same == Config.load(BASE)


def test_naming_the_type_again_keeps_the_settings(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("filter: {eta: 0.8}")
    assert Config.load(path, ["filter.type=token_transport"]).filter.eta == 0.8
    assert Config.load(path, ["filter.type=fixed_k"]).filter == FILTERS.build("fixed_k", {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["filtre.eta=1"], r"unknown section `filtre`\. Did you mean `filter`\?"),
        (["filter.etta=1"], r"filter `token_transport` has no setting `etta`\. Did you mean `eta`"),
        (["filter.percentile=5"], r"filter `token_transport` has no setting `percentile`"),
        (["filter.type=richi"], r"unknown filter `richi`\. Did you mean `ricci`\?"),
        (["filter.type=[a]"], r"unknown filter `\['a'\]`\. Known: "),
        (["rerank.type=maxsin"], r"unknown reranker `maxsin`\. Did you mean `maxsim`\?"),
        (["rerank.k=1"], r"reranker `none` has no setting `k`\. It takes no settings"),
        (["runtime.devise=cpu"], r"section `runtime` has no setting `devise`\. Did you mean `dev"),
        (["select.top_k=ten"], r"section `select`: `top_k` must be int \| None; got 'ten'"),
        (["runtime.strict=1"], r"section `runtime`: `strict` must be bool; got 1"),
        (["model.name=5"], r"section `model`: `name` must be str; got 5"),
        (["filter.eta=one"], r"filter `token_transport`: `eta` must be float; got 'one'"),
        (["model.dtype=float64"], r"`model\.dtype` must be float32, float16 or bfloat16; got 'flo"),
        (["retrieve.index=flatt"], r"unknown `retrieve\.index` `flatt`\. Did you mean `flat`\?"),
        (["retrieve.k=0"], r"`retrieve\.k` must be at least 1; got 0"),
        (["select.top_k=0"], r"`select\.top_k` must be at least 1 or null; got 0"),
        (["runtime.batch_size=0"], r"`runtime\.batch_size` must be at least 1; got 0"),
        (["filter.temperature=0"], r"`temperature` must be greater than 0 and finite; got 0"),
        (["filter.temperature=.inf"], r"`temperature` must be greater than 0 and finite; got inf"),
        (["filter.temperature=.nan"], r"`temperature` must be greater than 0 and finite; got nan"),
        (["filter.steps=0"], r"`steps` must be at least 1; got 0"),
        (["filter.eta=0"], r"`eta` must be greater than 0; got 0"),
        (["filter.eta=.nan"], r"`eta` must be greater than 0; got nan"),
        (["filter.minimum=-1"], r"`minimum` must be at least 0; got -1"),
        (["filter.maximum=0"], r"`maximum` must be at least `minimum` and at least 1; got 0 with"),
        (["filter.minimum=3", "filter.maximum=2"], r"got 2 with `minimum` 3"),
    ],
)
def test_impossible_settings_state_the_rule(overrides, message):
    with pytest.raises(SettingError, match=message):
        Config.load("default", overrides)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("eta", 0, r"`eta` must be greater than 0; got 0"),
        ("eta", -0.5, r"`eta` must be greater than 0; got -0\.5"),
        ("alpha", 1, r"`alpha` must be in \[0, 1\); got 1"),
        ("alpha", -0.1, r"`alpha` must be in \[0, 1\); got -0\.1"),
        ("alpha", float("nan"), r"`alpha` must be in \[0, 1\); got nan"),
        ("p", -1, r"`p` must be at least 0; got -1"),
        ("iterations", -1, r"`iterations` must be at least 0; got -1"),
        ("step", 0, r"`step` must be in \(0, 1\]; got 0"),
        ("step", 1.5, r"`step` must be in \(0, 1\]; got 1\.5"),
        ("percentile", 101, r"`percentile` must be in \[0, 100\]; got 101"),
        ("neighbours", 0, r"`neighbours` must be at least 1; got 0"),
        ("graph", "knn", r"`graph` must be threshold or mutual_knn; got 'knn'"),
        ("rule", "gt", r"`rule` must be ge or le; got 'gt'"),
        ("percentile_over", "all", r"`percentile_over` must be nodes or candidates; got 'all'"),
        ("lengths", "cosine", r"`lengths` must be unit or dissimilarity; got 'cosine'"),
        ("solver", "sinkhron", r"unknown solver `sinkhron`\. Did you mean `sinkhorn`\?"),
        ("solver", {"epsilon": 1}, r"`solver` needs a `type`: one of .*exact, geomloss, sinkhorn"),
        (
            "solver",
            {"type": "sinkhorn", "epsilonn": 1},
            r"solver `sinkhorn` has no setting `epsilonn`\. Did you mean `epsilon`\?",
        ),
        (
            "solver",
            {"type": "sinkhorn", "epsilon": "x"},
            r"solver `sinkhorn`: `epsilon` must be float; got 'x'",
        ),
        ("solver", 5, r"`solver` must be .*; got 5"),
    ],
)
def test_impossible_settings_of_the_ricci_filter(setting, value, message):
    with pytest.raises(SettingError, match=message):
        Config.from_tree({"filter": {"type": "ricci", setting: value}})


@pytest.mark.parametrize(
    ("name", "setting", "value", "message"),
    [
        ("fixed_k", "k", 0, r"`k` must be at least 1; got 0"),
        ("fixed_k", "on", "cosine", r"`on` must be prior or maxsim; got 'cosine'"),
        ("fraction", "share", 0, r"`share` must lie in \(0, 1\]; got 0"),
        ("fraction", "share", 1.1, r"`share` must lie in \(0, 1\]; got 1\.1"),
        ("largest_gap", "window", 0, r"`window` must lie in \(0, 1\]; got 0"),
        ("autocut", "jumps", 0, r"`jumps` must be at least 1; got 0"),
        ("random", "k", 0, r"`k` must be at least 1; got 0"),
        ("random", "seed", 2**63, r"`seed` must fit 64 bits; got 9223372036854775808"),
        ("degree", "k", 0, r"`k` must be at least 1; got 0"),
        ("degree", "percentile", -1, r"`percentile` must lie in \[0, 100\]; got -1"),
        ("connected_component", "percentile", 200, r"`percentile` must lie in \[0, 100\]; got 200"),
        ("threshold", "at_least", float("nan"), r"`at_least` must be a number; got nan"),
        ("z_score", "at_least", float("nan"), r"`at_least` must be a number; got nan"),
    ],
)
def test_impossible_settings_of_the_controls(name, setting, value, message):
    with pytest.raises(SettingError, match=message):
        Config.from_tree({"filter": {"type": name, setting: value}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("filter.eta", r"must read section\.setting=value, such as filter\.eta=0\.9; got `filter"),
        ("eta=1", r"must read section\.setting=value.*; got `eta=1`"),
        (".eta=1", r"must read section\.setting=value.*; got `\.eta=1`"),
        ("filter..eta=1", r"must read section\.setting=value"),
        ("", r"must read section\.setting=value.*; got ``"),
        ("filter.eta=[", r"override `filter\.eta=\[`: the value is not valid YAML: "),
        ("model.name=2001-99-99", r"override `model\.name=2001-99-99`: the value is not valid"),
        ("filter.eta.x=1", r"override of `filter\.eta\.x`: `eta` is not a section"),
    ],
)
def test_unreadable_overrides(override, message):
    with pytest.raises(SettingError, match=message) as caught:
        Config.load("default", [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"filter: [", r"mine\.yaml is not valid YAML: while parsing a flow node"),
        (b"filter:\n\teta: 1", r"mine\.yaml is not valid YAML: "),
        (b"- filter", r"mine\.yaml must hold a mapping of sections; got list"),
        (b"filter", r"mine\.yaml must hold a mapping of sections; got str"),
        (b"filter:\n", r"section `filter` must be a mapping of settings; got None"),
        (b"filter: ricci", r"section `filter` must be a mapping of settings; got 'ricci'"),
        (b"1: {}", r"unknown section `1`\. Known: `filter`, `model`, `rerank`"),
        (b"model: {name: \xff}", r"mine\.yaml must be UTF-8 text \(invalid start byte\)"),
        (b"model: {name: !!python/object:os.system x}", r"mine\.yaml is not valid YAML"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=message) as caught:
        Config.load(path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_unknown_presets(tmp_path):
    with pytest.raises(SettingError, match=r"cannot read the settings file .*no\.yaml: No such fi"):
        Config.load(tmp_path / "no.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(SettingError, match=r"cannot read the settings file .*: Is a directory"):
        Config.load(tmp_path / "folder.yaml")
    with pytest.raises(SettingError, match=r"unknown preset `defualt`\. Did you mean `default`\?"):
        Config.load("defualt")
    with pytest.raises(SettingError, match=r"A file of your own must end in \.yaml"):
        Config.load(Path("settings.json"))


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Config().select.top_k = 3
