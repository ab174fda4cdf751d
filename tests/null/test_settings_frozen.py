"""The environment variables are an interface: adding, renaming or dropping one has to be meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opentrn import settings
from opentrn.errors import ConfigurationError

SOURCE = Path(settings.__file__).parent

FROZEN = {
    "OPENTRN_INSTANCE",
    "OPENTRN_CHIPS_PATH",
    "OPENTRN_STRICT",
    "OPENTRN_NUMERICS",
    "OPENTRN_AS",
    "OPENTRN_GUARD",
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_RT_NUM_CORES",
    "NEURON_LOGICAL_NC_CONFIG",
    "NEURON_RT_VIRTUAL_CORE_SIZE",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NKI_SIMULATOR",
    "NKI_NC_VERSION",
    "OPENTRN_CACHE_DIR",
    "OPENTRN_NKI_VERSION",
    "OPENTRN_STEP_LIMIT",
}

# Set by a command for the processes it starts; no user sets them. (None at present.)
INTERNAL: set[str] = set()


def test_the_list_is_the_one_we_promise() -> None:
    names = [variable.name for variable in settings.VARIABLES]
    assert set(names) == FROZEN and len(names) == len(set(names))


def test_every_variable_says_what_it_means_and_has_a_valid_default() -> None:
    for variable in settings.VARIABLES:
        assert variable.meaning and not variable.meaning.endswith(".")
        assert not variable.choices or variable.default in variable.choices


def test_no_source_file_reads_a_variable_of_ours_that_is_not_listed() -> None:
    pattern = re.compile(r"""environ(?:\.get\(|\[|\.setdefault\()\s*["']((?:OPENTRN|NEURON|NKI)_\w+)["']""")
    read = {
        (name, path.name)
        for path in SOURCE.rglob("*.py")
        for name in pattern.findall(path.read_text(encoding="utf-8"))
    }
    assert {name for name, _ in read} <= FROZEN | INTERNAL, read


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENTRN_STRICT", raising=False)
    assert settings.get("OPENTRN_STRICT") == "0"
    monkeypatch.setenv("OPENTRN_STRICT", "1")
    assert settings.get("OPENTRN_STRICT") == "1"
    monkeypatch.setenv("OPENTRN_STRICT", "maybe")
    with pytest.raises(ConfigurationError, match=r"(?s)OPENTRN_STRICT=maybe.*what to do"):
        settings.get("OPENTRN_STRICT")
    with pytest.raises(KeyError):
        settings.get("OPENTRN_UNKNOWN")


def test_the_step_limit_is_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENTRN_STEP_LIMIT", raising=False)
    assert settings.step_limit(7) == 7
    monkeypatch.setenv("OPENTRN_STEP_LIMIT", "1000")
    assert settings.step_limit(7) == 1000
    for text in ("0", "-1", "1e6", "many"):
        monkeypatch.setenv("OPENTRN_STEP_LIMIT", text)
        with pytest.raises(ConfigurationError, match="no count"):
            settings.step_limit(7)
