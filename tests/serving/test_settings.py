import argparse
import re

import pytest

from ricci_gpu.errors import SettingError
from ricci_gpu.serving.auth import read_keys, require_key
from ricci_gpu.serving.commands import add_commands, settings_of
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.settings import ServeSettings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"presets": ()}, "^a server needs at least one preset; got none"),
        ({"queue_requests": 0}, "^`queue_requests` must be greater than 0; got 0"),
        ({"max_wait_ms": -1.0}, "^`max_wait_ms` must be at least 0; got -1.0"),
        ({"max_documents": 20_000}, "^`max_documents` must be at most 10000; got 20000"),
        ({"keys": ("short",)}, "^a key must have at least 8 characters"),
    ],
)
def test_impossible_settings(settings, text):
    with pytest.raises(SettingError, match=text):
        ServeSettings(**settings)


def options(*arguments):
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    return parser.parse_args(["serve", *arguments])


def test_options_of_the_command(tmp_path):
    assert settings_of(options(), "") == ServeSettings()
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nfirst-key\n\nsecond-key\n")
    given = options(
        *("--host", "0.0.0.0", "--port", "9000", "--preset", "default", "--device", "cuda:1"),
        *("--set", "filter.eta=0.8", "--max-wait-ms", "2", "--cache-entries", "9"),
        *("--keys-file", str(keys), "--log-texts"),
    )
    assert settings_of(given, " third-key ,") == ServeSettings(
        host="0.0.0.0",
        port=9000,
        presets=("default",),
        overrides=("filter.eta=0.8",),
        devices=("cuda:1",),
        max_wait_ms=2.0,
        cache_entries=9,
        keys=("third-key", "first-key", "second-key"),
        log_texts=True,
    )


def test_keys(tmp_path):
    empty = tmp_path / "keys"
    empty.write_text("# nothing\n")
    with pytest.raises(SettingError, match="must hold a key per line; it holds none"):
        read_keys(empty)
    some = tmp_path / "some"
    some.write_text("  # a remark\n  first-key \n\nschlüssel\n", encoding="utf-8")
    assert read_keys(some) == ("first-key", "schlüssel")
    as_sent = "Bearer schlüssel".encode().decode("latin-1")  # how a header comes
    require_key(("first-key", "schlüssel"), "/v1/rerank", as_sent)
    require_key((), "/v1/rerank", None)
    require_key(("a-key",), "/health", None)
    require_key(("a-key", "b-key"), "/v1/rerank", "bearer b-key")
    for given in (None, "", "a-key", "Bearer c-key", "Basic a-key"):
        with pytest.raises(Refusal, match=re.escape("send `Authorization: Bearer <key>`")) as error:
            require_key(("a-key", "b-key"), "/v1/rerank", given)
        assert error.value.status == 401


def test_presets_of_a_server(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("filter: {type: fixed_k, k: 2}\nselect: {top_k: 1}\nruntime: {strict: true}\n")
    presets = Presets([str(own), "default"], ["runtime.device=cpu"])
    assert list(presets.configs) == ["own", "default"]
    config = presets.choose().config
    assert (config.select.top_k, config.runtime.strict) == (None, False)  # the client decides
    (tmp_path / "b").mkdir()
    again = tmp_path / "b" / "own.yaml"
    again.write_text("{}")
    with pytest.raises(SettingError, match="two presets are called `own`"):
        Presets([str(own), str(again)])
    other = tmp_path / "other.yaml"
    other.write_text("model: {name: another}\n")
    with pytest.raises(SettingError, match="all presets of a server share one model, so `model`"):
        Presets([str(own), str(other)])
