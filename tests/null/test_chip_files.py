"""Chip files of the user's own: what one file suffices for, and what every mistake in one is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opentrn.chips import chip_names, load_chip, load_instance, machine
from opentrn.errors import ConfigurationError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the developer's shell, and a cache of our own."""
    for name in list(os.environ):
        if name.startswith(("NEURON_", "OPENTRN_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENTRN_CACHE_DIR", str(tmp_path / "cache"))


OWN_CHIP = """\
schema = "chip"
name = "own"
title = "A chip of mine"
vendor = "me"
kind = "neuroncore"
device_name = "own"
core_generation = "v3"
include = ["neuroncore"]

[sources.desk]
title = "my desk"
url = "https://example.org/desk"
as_of = "2026-11-30"

[cores]
per_chip = { value = 4, source = "desk" }
default_logical = { value = 1, source = "desk" }
logical_sizes = { value = [1, 2], source = "desk" }

[clocks]
tensor = { value = 2000, unit = "MHz", source = "desk" }
vector = { value = 1.0, unit = "GHz", source = "desk" }
scalar = { value = 1.0, unit = "GHz", source = "desk" }
gpsimd = { value = 1.0, unit = "GHz", source = "desk" }

[peak]
bf16 = { value = 400, unit = "TFLOP/s", source = "desk" }

[tensor_engine]
bf16 = { value = 100, unit = "TFLOP/s", source = "desk" }
fp32 = { value = 25, unit = "TFLOP/s", source = "desk" }
efficiency = { value = 0.9, status = "assumed", reason = "a round number" }

[vector_engine]
copy_speedup_16bit = { value = 1.0, source = "desk" }
tensor_tensor_speedup_16bit = { value = 1.0, source = "desk" }

[scalar_engine]
copy_speedup_16bit = { value = 1.0, source = "desk" }

[sbuf]
bytes_per_partition = { value = 128, unit = "KiB", source = "desk" }
reserved_per_partition = { value = 0, unit = "B", source = "desk" }

[memory]
capacity = { value = 64, unit = "GiB", source = "desk" }
bandwidth = { value = 2, unit = "TB/s", source = "desk" }

[dma]
engine_bandwidth = { value = 20, unit = "B/ns", source = "desk" }
engine_peak = { value = 25, unit = "B/ns", source = "desk" }
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    directory = tmp_path / "my chips"
    directory.mkdir()
    (directory / "own.toml").write_text(OWN_CHIP)
    monkeypatch.setenv("OPENTRN_CHIPS_PATH", str(directory))
    return directory


def test_one_file_makes_a_chip_that_can_be_attached(own: Path) -> None:
    assert "own" in chip_names()
    attached = machine("own")
    numbers = attached.device_parameters()
    assert attached.device_count == 4
    assert numbers["hbm_bytes"] == 16 * 2**30
    assert numbers["tensor_clock_ghz"] == 2.0
    assert numbers["mfu_peak_tflops_bf16"] == 100.0  # no MFU denominator of its own: the peak
    assert machine("own", lnc=2).device_parameters()["tensor_tflops_bf16"] == 200.0


def test_own_files_come_before_the_shipped_ones(own: Path) -> None:
    path = Path(load_instance("trn2.3xlarge").path)
    text = path.read_text().replace("value = 50", "value = 3").replace('"trn2"', '"own"')
    (own / "trn2.3xlarge.toml").write_text(text)
    attached = machine("trn2.3xlarge")
    assert attached.chip.name == "own"
    assert attached.device_parameters()["h2d_bytes_per_s"] == 3e9 / 4


def test_an_edited_file_is_read_again(own: Path) -> None:
    assert load_chip("own")["peak.bf16"] == 400
    (own / "own.toml").write_text(OWN_CHIP.replace("value = 400", "value = 401"))
    assert load_chip("own")["peak.bf16"] == 401


def test_a_damaged_copy_is_not_trusted(own: Path, tmp_path: Path) -> None:
    load_chip("own")
    (copy,) = (tmp_path / "cache" / "chips").glob("own-*.json")
    whole = copy.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b"400", b"999"), b"zz\n{}"):
        copy.write_bytes(damaged)
        assert load_chip("own")["peak.bf16"] == 400
        assert copy.read_bytes() == whole


def test_a_read_only_cache_is_no_obstacle(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENTRN_CACHE_DIR", "/proc/nowhere")
    assert load_chip("own")["peak.bf16"] == 400


def edit(old: str, new: str) -> str:
    assert old in OWN_CHIP
    return OWN_CHIP.replace(old, new, 1)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# old text, new text, what the message says, and the line it points to (by the text on it).
FAULTS = [
    (
        "per_chip =",
        "per_chp =",
        r"unknown field 'cores.per_chp'(.|\n)*did you mean cores.per_chip",
        "per_chp",
    ),
    ("[peak]", "[peeks]", r"unknown field 'peeks.bf16'(.|\n)*did you mean peak.bf16", "bf16 = { value = 400"),
    ('vendor = "me"', 'vendr = "me"', r"missing setting 'vendor'", None),
    (
        'vendor = "me"',
        'vendor = "me"\nvendr = "x"',
        r"unknown setting 'vendr'(.|\n)*did you mean vendor",
        "vendr",
    ),
    (
        'bandwidth = { value = 2, unit = "TB/s", source = "desk" }',
        "",
        r"missing field 'memory.bandwidth'",
        "[memory]",
    ),
    ("value = 400", 'value = "fast"', r"peak.bf16 must be a number, not 'fast'", '"fast"'),
    ("value = 400", "value = true", r"peak.bf16 must be a number, not True", "value = true"),
    ("value = 400", "value = -1", r"peak.bf16 must be a number, not -1", "value = -1"),
    ("value = 400", "value = nan", r"peak.bf16 must be a number, not nan", "value = nan"),
    ("value = 400", "value = 2026-11-30", r"peak.bf16 must be a number", "value = 2026-11-30"),
    (
        "per_chip = { value = 4",
        "per_chip = { value = 4.0",
        r"cores.per_chip must be a whole number, not 4.0",
        "4.0",
    ),
    ("value = [1, 2]", "value = [1, 3]", r"logical_sizes must divide per_chip", "[1, 3]"),
    ("value = [1, 2]", 'value = ["1"]', r"must be a list of whole numbers", '["1"]'),
    (
        'unit = "MHz"',
        'unit = "Mhz"',
        r"bad unit 'Mhz' for clocks.tensor(.|\n)*valid units: GHz, MHz",
        '"Mhz"',
    ),
    (', unit = "MHz"', "", r"bad unit '' for clocks.tensor", "value = 2000"),
    (
        "value = 4,",
        'value = 4, unit = "B",',
        r"cores.per_chip has no unit, but the file says 'B'",
        'unit = "B", source',
    ),
    (
        '100, unit = "TFLOP/s", source = "desk"',
        '100, unit = "TFLOP/s", source = "dsk"',
        r"unknown source 'dsk' in tensor_engine.bf16(.|\n)*did you mean desk",
        '"dsk"',
    ),
    (
        '100, unit = "TFLOP/s", source = "desk"',
        '100, unit = "TFLOP/s"',
        r"tensor_engine.bf16 has no source",
        "value = 100",
    ),
    (
        ', reason = "a round number"',
        "",
        r"tensor_engine.efficiency is assumed without a reason",
        "efficiency",
    ),
    ('status = "assumed"', 'status = "guessed"', r"unknown status 'guessed'", "guessed"),
    ("{ value = 400", "{ vlaue = 400", r"unknown key 'vlaue' in peak.bf16(.|\n)*did you mean value", "vlaue"),
    ('{ value = 400, unit = "TFLOP/s", source = "desk" }', "400", r"peak.bf16 must be a table", "bf16 = 400"),
    ("{ value = 400, ", "{ ", r"peak.bf16 has no value", "bf16 = { unit"),
    (
        '400, unit = "TFLOP/s", source = "desk"',
        '400, unit = "TFLOP/s", source = "desk", '
        'conflicts = [{ value = 4, unit = "TFLOP/s", source = "desk" }]',
        r"peak.bf16 has conflicts and no choice",
        "conflicts",
    ),
    (
        '400, unit = "TFLOP/s", source = "desk"',
        '400, unit = "TFLOP/s", source = "desk", choice = "x", '
        'conflicts = [{ value = 4, unit = "GB", source = "desk" }]',
        r"bad unit 'GB' for peak.bf16",
        "conflicts",
    ),
    ('as_of = "2026-11-30"', "", r"source 'desk' needs 'as_of'", "[sources.desk]"),
    (
        'include = ["neuroncore"]',
        'include = ["neuron"]',
        r"unknown include 'neuron'(.|\n)*did you mean neuroncore",
        "include",
    ),
    ('kind = "neuroncore"', 'kind = "npu"', r"unknown kind 'npu'", "kind"),
    ('name = "own"', 'name = "other"', r"name 'other' differs from the file's name", 'name = "other"'),
    ('title = "A chip of mine"', "title = 3", r"title must be a string", "title = 3"),
    ("[peak]", "[peak", r"malformed TOML", "[peak\n"),
    ('title = "A chip of mine"', 'title = "A chip', r"malformed TOML", 'title = "A chip'),
    ('name = "own"', 'name = "own"\nname = "own"', r"malformed TOML: Cannot overwrite", None),
]


@pytest.mark.parametrize(("old", "new", "says", "at"), FAULTS, ids=[f[1][:30] or f[0][:30] for f in FAULTS])
def test_faulty_files(own: Path, old: str, new: str, says: str, at: str | None) -> None:
    text = edit(old, new)
    (own / "own.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        load_chip("own")
    assert "own.toml" in str(caught.value.where)
    if at is not None:
        assert str(caught.value.where).endswith(f"own.toml:{line_of(text, at)}")


def test_a_file_that_is_not_text(own: Path) -> None:
    (own / "own.toml").write_bytes(b'schema = "chip"\nname = "\xff"\n')
    with pytest.raises(ConfigurationError, match=r"not UTF-8 text \(at .*own.toml:2\)"):
        load_chip("own")


def test_a_chips_path_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENTRN_CHIPS_PATH", "/no/such/place")
    with pytest.raises(ConfigurationError, match="'/no/such/place', which is not a directory"):
        load_chip("trn2")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('value = "torus2d"', 'value = "torus"', r"unknown topology 'torus'(.|\n)*did you mean"),
        ("value = [4, 4, 1]", "value = [4, 4]", r"extent \[4, 4\] does not multiply to machine.chips = 16"),
        ("value = [4, 4, 1]", "value = [4, 4, 2]", r"does not multiply"),
        ('chip = "trn2"', 'chip = "trn22"', r"unknown chip 'trn22'(.|\n)*did you mean trn2"),
        ("scale_up =", "scaleup =", r"unknown field 'network.scaleup'(.|\n)*network.scale_up"),
        ('include = ["neuron_host"]', "", r"missing field 'host.operator'"),
    ],
)
def test_faulty_instances(own: Path, old: str, new: str, says: str) -> None:
    text = Path(load_instance("trn2.48xlarge").path).read_text()
    assert old in text
    (own / "mine.toml").write_text(
        text.replace(old, new, 1).replace('name = "trn2.48xlarge"', 'name = "mine"')
    )
    with pytest.raises(ConfigurationError, match=says):
        machine("mine")


def test_the_examples_of_the_guide_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "chips.md").read_text(encoding="utf-8")
    chip, instance = (block.split("```")[0] for block in guide.split("```toml\n")[1:])
    monkeypatch.setenv("OPENTRN_CHIPS_PATH", str(tmp_path))
    (tmp_path / "mychip.toml").write_text(chip)
    assert machine("mychip").device_count == 4
    (tmp_path / "mychip.toml").write_text(chip.replace("include", 'default_instance = "mymachine"\ninclude'))
    (tmp_path / "mymachine.toml").write_text(instance)
    attached = machine("mychip")
    assert (attached.name, attached.device_count) == ("mymachine", 32)
    assert attached.device_parameters()["scale_up_bytes_per_s"] == 50e9
