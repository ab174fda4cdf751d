"""The hardware as data: what the shipped files say, what is attached, and what bad input is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from opentrn.chips import chip_names, instance_names, load_chip, load_instance, machine
from opentrn.chips.schema import CHIP_FIELDS, INSTANCE_FIELDS
from opentrn.cli.chips_command import chips as chips_command
from opentrn.errors import ConfigurationError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the developer's shell, and a cache of our own."""
    for name in list(os.environ):
        if name.startswith(("NEURON_", "OPENTRN_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPENTRN_CACHE_DIR", str(tmp_path / "cache"))


# ---- the shipped data -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_reads_and_its_usual_instance_exists(name: str) -> None:
    chip = load_chip(name)
    assert load_instance(chip.settings["default_instance"]).chip == name


@pytest.mark.parametrize("name", instance_names())
def test_every_instance_can_be_attached(name: str) -> None:
    attached = machine(name)
    numbers = attached.device_parameters()
    reference = machine("trn2.48xlarge").device_parameters()
    assert numbers.keys() == reference.keys()
    for key, value in numbers.items():
        assert type(value) is type(reference[key]), key
        if not isinstance(value, str):
            assert 0 <= value < float("inf"), key
    for key in (
        "hbm_bytes",
        "hbm_bytes_per_s",
        "tensor_tflops_bf16",
        "dma_bytes_per_s",
        "host_ns_per_op",
        "vector_lanes",
    ):
        assert numbers[key] > 0, key  # type: ignore[operator]


def test_every_figure_says_how_it_is_known() -> None:
    for subject in [*map(load_chip, chip_names()), *map(load_instance, instance_names())]:
        for key, constant in subject.constants.items():
            if constant.status == "sourced":
                source = subject.sources[constant.source]
                assert source.title and source.url.startswith("https://") and source.as_of[:2] == "20", key
            else:
                assert constant.reason, key


def test_every_source_is_used() -> None:
    """A source that no figure of a chip cites would be decoration."""
    for name in chip_names():
        chip = load_chip(name)
        cited = {c.source for c in chip.constants.values()}
        cited |= {conflict.source for c in chip.constants.values() for conflict in c.conflicts}
        assert chip.sources.keys() - cited == set(), name


def test_every_number_has_a_provenance() -> None:
    identity = {
        "instance",
        "chip",
        "device_name",
        "platform_target",
        "kind",
        "core_generation",
        "topology",
        "device_count",
        "devices_per_chip",
        "devices_per_instance",
        "cores_per_logical",
        "topology_x",
        "topology_y",
        "topology_z",
    }
    for name in ("trn1.32xlarge", "trn3-gen1", "p5.48xlarge", "tpu7x-host"):
        attached = machine(name)
        known = attached.provenance()
        assert known.keys() == attached.device_parameters().keys() - identity
        assert all(
            status in ("sourced", "derived", "fitted", "assumed") and why for status, why in known.values()
        )


# The figures of the public documents, by hand.
@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (
            "trn2.48xlarge",
            dict(
                device_count=64,
                devices_per_chip=4,
                hbm_bytes=24 * 2**30,
                hbm_bytes_per_s=725e9,
                tensor_tflops_bf16=158.0,
                tensor_tflops_fp8=316.0,
                tensor_tflops_fp32=40.0,
                tensor_tflops_mxfp8=0.0,
                mfu_peak_tflops_bf16=158.0,
                vendor_peak_tflops_bf16=166.75,
                dma_bytes_per_s=736e9,
                dma_peak_bytes_per_s=870.4e9,
                tensor_clock_ghz=2.4,
                vector_clock_ghz=0.96,
                sbuf_bytes_per_partition=224 * 1024,
                scale_up_bytes_per_s=128e9,
                scale_out_bytes_per_s=50e9 / 8,
                domain_instances=1,
                domain_bytes_per_s=0.0,
                device_name="trn2",
                hbm_reserved_bytes=192 * 2**20,
                dma_issue_ns=600,
                gather_row_ns=2.0,
            ),
        ),
        (
            "trn1.32xlarge",
            dict(
                device_count=32,
                devices_per_chip=2,
                hbm_bytes=16 * 2**30,
                tensor_tflops_bf16=92.0,
                mfu_peak_tflops_bf16=90.0,
                vendor_peak_tflops_bf16=95.0,
                dma_bytes_per_s=272e9,
                sbuf_bytes_per_partition=192 * 1024,
                cores_per_logical=1,
                vector_copy_speedup_16bit=1.0,
                device_name="trn1",
                platform_target="trn1",
            ),
        ),
        ("trn1n.32xlarge", dict(device_name="trn1n", scale_out_bytes_per_s=1600e9 / 8 / 32)),
        ("trn2u.48xlarge", dict(device_name="trn2u", domain_instances=4, domain_bytes_per_s=32e9)),
        (
            "u-trn2x64",
            dict(instance="trn2-ultraserver", device_count=64, chips_per_instance=16, domain_instances=4),
        ),
        (
            "trn3-gen2",
            dict(
                device_count=16,
                hbm_bytes=36 * 2**30,
                tensor_tflops_mxfp8=630.0,
                mfu_peak_tflops_bf16=158.0,
                sbuf_bytes_per_partition=256 * 1024,
                domain_instances=36,
                device_name="trn3",
                scalar_copy_speedup_16bit=2.0,
            ),
        ),
        (
            "inf2.48xlarge",
            dict(device_count=24, topology="ring", scale_out_bytes_per_s=0.0, platform_target="inf2"),
        ),
        (
            "p5.48xlarge",
            dict(
                device_count=8,
                kind="gpu",
                tensor_tflops_bf16=989.0,
                mfu_peak_tflops_bf16=989.0,
                hbm_bytes=80 * 10**9,
                tensor_efficiency=794.5 / 989,
                scale_out_bytes_per_s=50e9,
                tensor_tflops_mxfp8=0.0,
            ),
        ),
        ("tpu7x-host", dict(device_count=8, kind="tpu", tensor_tflops_bf16=1153.5, hbm_bytes=96 * 10**9)),
        ("trn2", dict(instance="trn2.48xlarge")),
    ],
)
def test_published_figures(instance: str, expected: dict[str, Any]) -> None:
    numbers = machine(instance).device_parameters()
    assert {key: numbers[key] for key in expected} == pytest.approx(expected)


def test_logical_cores_share_the_chip() -> None:
    """The devices of a chip together have what the chip has, however cores are grouped."""
    chip = load_chip("trn2")
    for size in (1, 2):
        attached = machine("trn2.48xlarge", lnc=size, num_cores=1)
        numbers = attached.device_parameters()
        count = attached.devices_per_chip
        assert numbers["hbm_bytes"] * count == chip["memory.capacity"]  # type: ignore[operator]
        assert numbers["tensor_tflops_bf16"] * count == 79 * 8  # type: ignore[operator]
        assert numbers["mfu_peak_tflops_bf16"] == 79 * size
        assert numbers["vector_lanes"] == 128


def test_conflicting_sources_are_kept_with_the_choice() -> None:
    constant = load_chip("trn3").constants["links.total"]
    assert {c.value for c in constant.conflicts} == {2.56, 2048} and constant.choice
    bandwidth = load_chip("trn2").constants["memory.bandwidth"]
    assert (bandwidth.value, bandwidth.conflicts[0].value, bandwidth.conflicts[0].unit) == (2.9, 3.0, "TB/s")


def test_reading_needs_no_heavy_library() -> None:
    """The hot path: none of the slow imports, and from the second process on no TOML either."""
    slow = {"pydantic", "typer", "rich", "difflib", "dataclasses", "tomllib", "torch"}
    program = (
        "import sys; from opentrn.chips.machine import machine; machine('trn2.48xlarge').device_parameters();"
        f"print(sorted({slow!r} & set(sys.modules)))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout.strip() == "['tomllib']"
    assert runs[1].stdout.strip() == "[]"


# ---- what is attached -----------------------------------------------------------------------------


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine().name == "trn2.48xlarge"
    monkeypatch.setenv("OPENTRN_INSTANCE", "trn2.3xlarge")
    assert (machine().name, machine().device_count) == ("trn2.3xlarge", 4)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert machine().device_count == 8
    assert machine(lnc=2).device_count == 4
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "3")
    assert machine().device_ids == (0, 1, 2)
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "6-7,1")
    assert machine().device_ids == (6, 7, 1)
    assert machine("trn1.32xlarge", environment={}).device_count == 32


@pytest.mark.parametrize(
    ("target", "instance"),
    [
        ("trn1", "trn1.32xlarge"),
        ("gen2", "trn1.32xlarge"),
        ("inf2", "inf2.48xlarge"),
        ("gen3", "trn2.48xlarge"),
        ("trn3", "trn3-gen2"),
        ("gen4", "trn3-gen2"),
    ],
)
def test_a_platform_target_chooses_the_usual_instance(target: str, instance: str) -> None:
    assert machine(environment={"NEURON_PLATFORM_TARGET_OVERRIDE": target}).name == instance


def test_a_platform_target_may_agree_with_the_instance() -> None:
    values = {"NEURON_PLATFORM_TARGET_OVERRIDE": "gen3", "OPENTRN_INSTANCE": "trn2u.48xlarge"}
    assert machine(environment=values).name == "trn2u.48xlarge"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"OPENTRN_INSTANCE": "trn2.48xlrage"},
            r"unknown instance 'trn2.48xlrage'(.|\n)*did you mean trn2.48xlarge",
        ),
        ({"OPENTRN_INSTANCE": "../chips/trn2"}, r"unknown instance"),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "3"},
            r"NEURON_LOGICAL_NC_CONFIG=3: a logical core of trn2 has 1 or 2 physical cores",
        ),
        ({"NEURON_LOGICAL_NC_CONFIG": "two"}, r"NEURON_LOGICAL_NC_CONFIG='two' is not a whole number"),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "2", "OPENTRN_INSTANCE": "trn1.2xlarge"},
            r"a logical core of trn1 has 1 physical core\n",
        ),
        ({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, r"contradict each other"),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "1"},
            r"128 logical cores of 1, and one process can hold 127(.|\n)*NEURON_RT_VISIBLE_CORES",
        ),
        (
            {"NEURON_RT_VISIBLE_CORES": "60-64"},
            r"asks for core 64; trn2.48xlarge has 64 logical cores(.|\n)*0 to 63",
        ),
        ({"NEURON_RT_VISIBLE_CORES": "5-2"}, r"'5-2' runs backwards"),
        ({"NEURON_RT_VISIBLE_CORES": "1,,2"}, r"'' is no core or range"),
        ({"NEURON_RT_VISIBLE_CORES": "-1"}, r"'-1' is no core or range"),
        ({"NEURON_RT_VISIBLE_CORES": "a"}, r"'a' is no core or range"),
        ({"NEURON_RT_VISIBLE_CORES": "0-2,2"}, r"names a core twice"),
        ({"NEURON_RT_NUM_CORES": "65"}, r"NEURON_RT_NUM_CORES=65, but trn2.48xlarge has 64"),
        ({"NEURON_RT_NUM_CORES": "-1"}, r"NEURON_RT_NUM_CORES=-1"),
        ({"NEURON_RT_NUM_CORES": "1.5"}, r"not a whole number"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn9"}, r"unknown platform target 'trn9'(.|\n)*did you mean"),
        (
            {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1", "OPENTRN_INSTANCE": "trn2.48xlarge"},
            r"contradicts trn2.48xlarge",
        ),
    ],
)
def test_impossible_settings(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        machine(environment=values)


def test_no_more_devices_than_an_index_can_count() -> None:
    assert machine("trn2.48xlarge", lnc=1, visible_cores="0-126").device_count == 127
    assert machine("trn2.48xlarge", lnc=1, num_cores=5).device_count == 5


# ---- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command() -> Any:
    application = Typer()
    application.command()(chips_command)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            application, list(arguments), env={"COLUMNS": "200"}, catch_exceptions=False
        )
        assert result.exit_code == 0
        return result.stdout

    return run


def test_the_list_names_everything(command: Any) -> None:
    shown = command()
    listed = json.loads(command("--json"))
    for name in [*chip_names(), *instance_names()]:
        assert name in shown
    assert [c["name"] for c in listed["chips"]] == chip_names()
    assert [i["name"] for i in listed["instances"]] == instance_names()
    (trn2,) = [i for i in listed["instances"] if i["name"] == "trn2.48xlarge"]
    assert (trn2["devices"], trn2["memory_bytes"]) == (64, 1536 * 2**30)


def test_one_chip_shows_every_constant_source_and_conflict(command: Any) -> None:
    shown = command("trn3")
    chip = load_chip("trn3")
    for key, constant in chip.constants.items():
        assert key in shown
        for conflict in constant.conflicts:
            assert f"but {conflict.value:g} {conflict.unit}".strip() in shown
    for source in chip.sources.values():
        assert source.url in shown
    assert json.loads(command("trn3", "--json"))["constants"]["memory.bandwidth"]["value"] == 4.9


def test_one_instance_shows_its_device(command: Any) -> None:
    assert "mfu_peak_tflops_bf16" in command("trn2.3xlarge")
    described = json.loads(command("trn2.3xlarge", "--json"))
    assert described["device"]["parameters"]["mfu_peak_tflops_bf16"] == 158.0
    assert described["device"]["provenance"]["host_ns_per_op"][0] == "assumed"


def test_an_unknown_name_is_told_the_nearest(command: Any) -> None:
    with pytest.raises(ConfigurationError, match="did you mean h100"):
        command("h10")


def test_the_guide_lists_every_field_and_parameter() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "chips.md").read_text(encoding="utf-8")
    for key in machine("trn2.48xlarge").device_parameters():
        assert f"`{key}`" in guide, key
    for section in {field.split(".")[0] for field in [*CHIP_FIELDS, *INSTANCE_FIELDS]}:
        assert f"`[{section}]`" in guide, section
