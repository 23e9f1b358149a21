"""Behaviours 1 to 12: what a config takes, what it refuses by name, and how the environment is laid over it."""

from __future__ import annotations

from typing import Any

import pytest

from scopelog.clients.memory.config import KEYS, MemoryConfig, load_config
from scopelog.clients.memory.errors import ConfigInvalid
from scopelog.errors import InvalidInput

BOUNDS = [
    ("port", 1, 65535),
    ("request_timeout_ms", 100, 120_000),
    ("startup_timeout_ms", 500, 300_000),
    ("fetch_max_attempts", 1, 8),
]


@pytest.mark.parametrize(("key", "low", "high"), BOUNDS)
def test_out_of_range_numbers_are_refused_on_both_sides(key: str, low: int, high: int) -> None:
    """Behaviour 1."""
    for value in (low - 1, high + 1, -high):
        with pytest.raises(ConfigInvalid, match=key):
            load_config({key: value}, {})


@pytest.mark.parametrize("key", [key for key, _, _ in BOUNDS])
@pytest.mark.parametrize("value", ["3", True, None, [3]])
def test_a_number_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    """Behaviour 2: booleans are no integers."""
    with pytest.raises(ConfigInvalid, match=key):
        load_config({key: value}, {})


@pytest.mark.parametrize("key", ["capture_tool_results", "capture_prompts"])
@pytest.mark.parametrize("value", ["true", 1, 0, None])
def test_a_boolean_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    """Behaviour 2."""
    with pytest.raises(ConfigInvalid, match=key):
        load_config({key: value}, {})


@pytest.mark.parametrize("key", [key for key, _, _ in BOUNDS])
def test_a_fraction_is_refused_not_truncated(key: str) -> None:
    """Behaviour 3."""
    for value in (500.5, 3.0):
        with pytest.raises(ConfigInvalid, match=key):
            load_config({key: value}, {})


@pytest.mark.parametrize("value", ["", "  ", "\t\n", None, 7, "a\0b"])
def test_a_blank_binary_is_refused(value: Any) -> None:
    """Behaviour 4."""
    with pytest.raises(ConfigInvalid, match="binary"):
        load_config({"binary": value}, {})


def test_a_padded_binary_is_trimmed() -> None:
    """Behaviour 4."""
    assert load_config({"binary": "  /opt/engram \n"}, {}).binary == "/opt/engram"


def test_an_unknown_key_is_named_also_beside_valid_ones() -> None:
    """Behaviour 5."""
    for values in ({"prot": 7437}, {"port": 7437, "prot": 1, "url": ""}):
        with pytest.raises(ConfigInvalid, match="'prot'"):
            load_config(values, {})
    odd: Any = {7: 1}
    with pytest.raises(ConfigInvalid, match="'7'"):
        load_config(odd, {})


def test_an_unknown_key_comes_before_a_bad_value() -> None:
    """Behaviour 5, and the order of section 2."""
    with pytest.raises(ConfigInvalid, match="unknown key 'prot'"):
        load_config({"port": 0, "prot": 1}, {})


@pytest.mark.parametrize("text", ["text", "0", "65536", "7437.5", "-1", "0x10", "1e3", "７４３７", "9" * 5000])
def test_a_malformed_port_variable_is_named(text: str) -> None:
    """Behaviour 6."""
    with pytest.raises(ConfigInvalid, match="ENGRAM_PORT"):
        load_config(None, {"ENGRAM_PORT": text})


@pytest.mark.parametrize("values", [None, {}])
def test_no_config_and_an_empty_one_give_every_default(values: dict[str, Any] | None) -> None:
    """Behaviour 7."""
    config = load_config(values, {})
    assert config == MemoryConfig() == MemoryConfig("engram", None, 7437, True, True, 3000, 10_000, 3)
    assert config.base_url == "http://127.0.0.1:7437"
    assert len(KEYS) == 8


@pytest.mark.parametrize(("key", "low", "high"), BOUNDS)
def test_boundary_values_pass_unchanged(key: str, low: int, high: int) -> None:
    """Behaviour 8."""
    for value in (low, high):
        assert getattr(load_config({key: value}, {}), key) == value


def test_the_environment_beats_the_file() -> None:
    """Behaviour 9."""
    file = {"binary": "one", "url": "http://one", "port": 1}
    environ = {"ENGRAM_BIN": " two ", "ENGRAM_URL": " http://two:2/ ", "ENGRAM_PORT": " 2 "}
    config = load_config(file, environ)
    assert (config.binary, config.url, config.port) == ("two", "http://two:2/", 2)
    assert config.base_url == "http://two:2"
    assert load_config(file, {}) == MemoryConfig(binary="one", url="http://one", port=1)


@pytest.mark.parametrize(
    ("bad", "environ"),
    [
        ({"port": 0}, {"ENGRAM_PORT": "7437"}),
        ({"binary": " "}, {"ENGRAM_BIN": "engram"}),
        ({"url": "ftp://one"}, {"ENGRAM_URL": "http://two"}),
    ],
)
def test_a_valid_variable_does_not_excuse_a_bad_value(bad: dict[str, Any], environ: dict[str, str]) -> None:
    """Behaviour 10."""
    with pytest.raises(ConfigInvalid, match=next(iter(bad))):
        load_config(bad, environ)


@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
def test_blank_variables_count_as_unset(blank: str) -> None:
    """Behaviour 11."""
    file = {"binary": "one", "url": "http://one", "port": 1}
    environ = dict.fromkeys(("ENGRAM_BIN", "ENGRAM_URL", "ENGRAM_PORT"), blank)
    assert load_config(file, environ) == load_config(file, {})


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_a_blank_url_is_none_and_a_set_one_survives(blank: str | None) -> None:
    """Behaviour 12."""
    assert load_config({"url": blank}, {}).url is None
    assert load_config({"url": "https://[::1]:8/base"}, {}).url == "https://[::1]:8/base"


@pytest.mark.parametrize(
    "url",
    ["localhost:7437", "http://", "http://h:0", "http://h:x", "http://u:secret@h", "http://h?secret", "http://a b"],
)
def test_an_address_that_cannot_be_used_is_refused_without_quoting_it(url: str) -> None:
    """Beyond the list: no request could be sent there, or it would carry what does not belong in a URL."""
    for values, environ, name in (({"url": url}, {}, "url"), (None, {"ENGRAM_URL": url}, "ENGRAM_URL")):
        with pytest.raises(ConfigInvalid, match=name) as caught:
            load_config(values, environ)
        assert "secret" not in str(caught.value)
        assert isinstance(caught.value, InvalidInput)


def test_the_file_s_mapping_is_not_changed() -> None:
    file = {"port": 1}
    load_config(file, {"ENGRAM_PORT": "2"})
    assert file == {"port": 1}
