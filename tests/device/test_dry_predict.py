"""`opentrn predict` at full size: known facts to the byte, and answers where a plan does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import opentrn
from opentrn.device import _C
from opentrn.errors import ConfigurationError, OpenTRNError
from opentrn.predict import Plan, build, catalogue, predict
from opentrn.predict import prediction as prediction_module

NO_LIMIT = 1e4


def requested() -> int:
    """Bytes that live tensors asked for."""
    return torch.neuron.memory_stats()["requested_bytes.all.current"]


@pytest.fixture
def unlimited():
    torch.neuron.init()
    _C.set_memory_fraction(0, NO_LIMIT)
    yield
    _C.set_memory_fraction(0, 1.0)


@pytest.mark.parametrize("name", catalogue.names())
def test_parameters_are_the_published_number(name):
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    model, plan = catalogue.find(name), Plan(name, sequence=64)
    factory = AutoModelForImageClassification if build.is_image(model) else AutoModelForCausalLM
    config = build.configuration(model, plan)
    config._attn_implementation = build.attention_of(factory, config, plan)
    with torch.device("meta"):
        built = factory.from_config(config)
    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters


@pytest.mark.slow
def test_what_does_not_fit_is_an_answer():
    prediction = predict(Plan("qwen3-8b", sequence=2048))
    assert prediction.shortage is not None
    text = prediction.shortage.sentence()
    assert text.startswith("does not fit, by ") and "held by" in text
    # 15.3 GiB of weights leave room for the activations of some of the 36 layers.
    assert prediction.shortage.phase == "forward" and 0 < prediction.shortage.layer < 36
    assert not any("without effect" in line for line in prediction.assumptions)
    assert f"first at layer {prediction.shortage.layer} (model.layers." in text
    assert prediction.shortage.missing > 0
    assert any(found.fits for _, found in prediction.fixes), [name for name, _ in prediction.fixes]
    json.dumps(prediction.as_json())


@pytest.mark.parametrize(
    ("plan", "phase"),
    [
        (Plan("qwen3-32b", sequence=64, steps=1), "building"),
        (Plan("qwen3-4b", sequence=64, steps=1), "optimizer"),
        (Plan("qwen3-1.7b", sequence=4096, batch=8, steps=1), "forward"),
    ],
)
def test_where_it_runs_out(plan, phase):
    """Weights of 64 layers are cut off at the layer that arithmetic says; so is the optimizer's state."""
    short = predict(plan, suggest=False).shortage
    assert short is not None and short.phase == phase and short.layer is not None
    config = catalogue.find(plan.model).config
    width, heads, groups, head = (
        config[n] for n in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    layer = 3 * width * config["intermediate_size"] + 2 * width * head * (heads + groups) + 2 * (width + head)
    table = config["vocab_size"] * width
    if phase == "building":
        assert short.layer == (short.capacity // 2 - table) // layer
    if phase == "optimizer":
        tables = table * (1 if config["tie_word_embeddings"] else 2)
        held = 4 * (tables + config["num_hidden_layers"] * layer)  # parameters and gradients
        assert abs(short.layer - ((short.capacity - held) // 4 - table) // layer) <= 1


@pytest.mark.slow
def test_what_one_instance_cannot_hold_is_tried_on_several():
    """In a process of its own: the small instance takes the place of this one's machine."""
    plan = ["predict", "qwen3-8b", "--instance", "trn1.2xlarge", "--sequence", "512", "--json"]
    done = subprocess.run([sys.executable, "-m", "opentrn.cli.main", *plan], capture_output=True, check=True)
    answer = json.loads(done.stdout)
    *small, last = answer["fixes"]
    assert not answer["fits"] and not any(fix["fits"] for fix in small)
    assert {"activation checkpointing", "2 cores (FSDP2)"} <= {
        fix["change"] for fix in [*small, *answer["ruled_out"]]
    }, "what one instance offers comes first"
    assert all(out["least_bytes"] > answer["shortage"]["capacity"] for out in answer["ruled_out"])
    assert last["fits"] and last["change"].endswith("(2 instances)"), "more instances, until it fits"


def test_what_more_cores_cannot_help_is_said():
    """Logits of 131,072 tokens and 151,936 words are 37 GiB in bfloat16 on each of any cores."""
    prediction = predict(Plan("qwen3-0.6b", batch=4, sequence=32768, steps=1))
    assert not any(found.fits for _, found in prediction.fixes)
    assert any(name.endswith("(64 instances)") for name, _ in prediction.ruled_out)
    assert any("FSDP2 leaves" in line and "tensor parallelism" in line for line in prediction.assumptions)


def test_more_cores_are_ruled_out_by_what_fewer_held_unsharded():
    plan = Plan("qwen3-0.6b", sequence=1024, steps=1, cores=4)
    prediction = predict(plan, suggest=False)
    many = replace(plan, cores=64)
    least, needed = prediction_module._least_bytes(prediction, many), predict(many, suggest=False)
    assert 0.75 * needed.summary.peak.allocated < least <= needed.summary.peak.allocated


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (Plan("qwen3-0.6b", sequence=256, steps=1), {}),
        (Plan("qwen3-0.6b", sequence=256, steps=1), {"optimizer": "sgd"}),
        (Plan("qwen3-0.6b", sequence=256, steps=1), {"checkpointing": True}),
        (Plan("qwen3-0.6b", sequence=2048, steps=1), {"cores": 4}),
        (Plan("qwen3-0.6b", sequence=2048, steps=1, precision="amp"), {"cores": 4}),
        (Plan("qwen3-0.6b", sequence=256, steps=1, precision="fp32"), {"precision": "bf16"}),
        (Plan("qwen3-0.6b", sequence=256, mode="prefill", steps=1), {"cores": 4}),
    ],
)
def test_what_is_ruled_out_without_a_run_could_not_have_fitted(plan, changes):
    """The lower bound that saves a run is below what the run needs."""
    changed = replace(plan, **changes)
    least = prediction_module._least_bytes(predict(plan, suggest=False), changed)
    needed = predict(changed, suggest=False).summary.peak.allocated
    assert 0.2 * needed < least <= needed


def test_what_cannot_be_enough_is_told_without_a_run(tmp_path):
    """60 G parameters: a training state of 0.44 TiB fits 64 cores of 24 GiB, not 16."""
    path = tmp_path / "config.json"
    size = {"hidden_size": 8192, "intermediate_size": 65536, "num_hidden_layers": 32, "vocab_size": 512}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128}
    path.write_text(json.dumps({"model_type": "qwen3", **size, **heads}))
    prediction = predict(Plan(str(path), sequence=64, steps=1))
    assert [name for name, _ in prediction.ruled_out] == [
        "activation checkpointing",
        "SGD without momentum",
        "4 cores (FSDP2)",
        "16 cores (FSDP2)",
    ]
    assert [(name, found.fits) for name, found in prediction.fixes] == [
        ("64 cores (FSDP2)", True),
        ("checkpointing and 64 cores", True),
    ]
    assert dict(prediction.ruled_out)["16 cores (FSDP2)"] == prediction.parameters * 8 // 16


def test_fields_that_nobody_gave_and_that_nobody_reads(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {"model_type": "qwen3", "hidden_size": 512, "num_hidden_layer": 99, "num_hidden_layers": 2}
        )
    )
    text = "\n".join(predict(Plan(str(path), sequence=64, steps=1), suggest=False).assumptions)
    assert "not in the configuration, so transformers' own: num_attention_heads = 32" in text
    assert "vocab_size = 151936" in text and "num_hidden_layers" not in text.split("own:")[1].split("\n")[0]
    assert "Qwen3Config does not have, without effect: num_hidden_layer" in text


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"pad_token_id": 5000}, "cannot build the model: AssertionError: Padding_idx"),
        ({"head_dim": 63}, "cannot configure the model: .*even rotary dimension"),
        ({"hidden_act": "nope"}, "cannot build the model: KeyError: 'nope'"),
        ({"model_type": "t5"}, "neither a causal language model nor an image classifier"),
        ({"model_type": ["qwen3"]}, "no field 'model_type'"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads = 3"),
    ],
)
def test_contradictory_configurations(tmp_path, changes, cause):
    path = tmp_path / "config.json"
    small = {"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}
    path.write_text(json.dumps({**small, "num_attention_heads": 4, "num_key_value_heads": 2, **changes}))
    with pytest.raises(OpenTRNError, match=cause):
        predict(Plan(str(path), sequence=64))


def test_fit_is_exact_at_the_edge():
    """What the prediction calls a fit runs under the real limit, and what it does not call one does not."""
    small = predict(Plan("qwen3-0.6b", sequence=2048, steps=1), suggest=False)
    assert small.fits and small.summary.peak is not None
    share = small.summary.peak.allocated / _C.memory_capacity(0)
    plan = Plan("qwen3-0.6b", sequence=2048, steps=1)
    for fraction, fits in ((share * 1.05, True), (share * 0.95, False)):
        torch.neuron.empty_cache()
        _C.set_memory_fraction(0, fraction)
        try:
            with opentrn.dry_run():
                described = catalogue.find(plan.model)
                work = build.Workload(build.build(described, plan), described, plan)
                if fits:
                    work.step()
                else:
                    with pytest.raises(torch.OutOfMemoryError, match="held by"):
                        work.step()
                del work
        finally:
            _C.set_memory_fraction(0, 1.0)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_inference(mode):
    prediction = predict(Plan("qwen3-0.6b", mode, batch=4, sequence=1024, steps=3), suggest=False)
    row = prediction.summary.headline
    assert prediction.fits and row is not None
    assert row.tokens == (4 if mode == "decode" else 4096)
    assert prediction.tokens_per_s and prediction.tokens_per_s > 0


@pytest.mark.parametrize("name", ["gpt2", "vit-base"])
def test_models_of_other_kinds(name):
    assert predict(Plan(name, sequence=512, batch=2), suggest=False).fits


def test_report_pages(tmp_path):
    from opentrn.explorer.terminal import report_console
    from opentrn.predict import report

    prediction = predict(Plan("gpt2", sequence=256), suggest=False)
    report.write(prediction, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "fits: " in page and "<script" not in page and "http" in page
    with (tmp_path / "page.txt").open("w") as file:
        report.print_report(prediction, report_console(file))
    text = (tmp_path / "page.txt").read_text()
    assert "MFU" in text and "tokens/s" in text and "124,439,808 parameters" in text


def test_sequence_beyond_the_model():
    with pytest.raises(ConfigurationError, match="exceeds the model's 1024 positions"):
        predict(Plan("gpt2", sequence=4096))


def test_unknown_model_type(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "unheard_of", "hidden_size": 64}))
    with pytest.raises(ConfigurationError, match="knows no model type 'unheard_of'"):
        predict(Plan(str(path)))
