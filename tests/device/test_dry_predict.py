"""`opentrn predict` at full size: known facts to the byte, and answers where a plan does not fit."""

from __future__ import annotations

import json

import pytest
import torch

import opentrn
from opentrn.device import _C
from opentrn.errors import ConfigurationError
from opentrn.explorer.utilization import formula_flops_per_token
from opentrn.predict import Plan, build, catalogue, predict

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


def test_bytes_of_qwen3_32b_on_one_core(unlimited):
    """Parameters, gradients and both AdamW moments are 2 bytes an element each; nothing else stays."""
    plan = Plan("qwen3-32b", sequence=512)
    with opentrn.dry_run():
        start = requested()
        model = build.build(catalogue.find(plan.model), plan)
        parameters = list(model.parameters())
        buffers = sum(buffer.nbytes for buffer in model.buffers())
        elements = 32_762_123_264
        assert requested() - start == 2 * elements + buffers
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        tokens = torch.ones(1, plan.sequence, dtype=torch.long, device="neuron")
        before = requested()
        model(input_ids=tokens, labels=tokens).loss.backward()
        assert requested() - before == 2 * elements
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert requested() - before == 2 * 2 * elements


def test_logits_and_kv_cache_of_llama_70b(unlimited):
    plan = Plan("llama-3.1-70b", "prefill", batch=2, sequence=1024)
    with opentrn.dry_run(), torch.no_grad():
        model = build.build(catalogue.find(plan.model), plan)
        output = model(input_ids=torch.ones(2, 1024, dtype=torch.long, device="neuron"), use_cache=True)
        assert output.logits.nbytes == 2 * 1024 * 128256 * 2
        cache = sum(layer.keys.nbytes + layer.values.nbytes for layer in output.past_key_values.layers)
        # layers · (keys and values) · batch · heads · tokens · head size · bf16
        assert cache == 80 * 2 * 2 * 8 * 1024 * 128 * 2


def test_attention_matrices_of_eager_attention(unlimited):
    """Eager attention keeps scores: the softmax in float32 and its bfloat16 copy, S × S for each head."""
    plan = Plan("qwen3-0.6b", sequence=1024, attention="eager")
    sizes = {}
    for attention in ("eager", "sdpa"):
        with opentrn.dry_run():
            model = build.build(
                catalogue.find(plan.model), Plan("qwen3-0.6b", sequence=1024, attention=attention)
            )
            tokens = torch.ones(1, 1024, dtype=torch.long, device="neuron")
            before = torch.neuron.memory_allocated()
            loss = model(input_ids=tokens, labels=tokens).loss
            sizes[attention] = torch.neuron.memory_allocated() - before
            del loss, model
    matrix = 16 * 1024 * 1024
    assert sizes["eager"] - sizes["sdpa"] >= 28 * matrix * 2


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-32b", "llama-3.1-8b"])
def test_counted_flops_agree_with_the_formula(name):
    row = predict(Plan(name, sequence=4096), suggest=False).summary.headline
    assert row is not None and row.mfu_formula is not None and row.mfu_counted is not None
    assert row.mfu_counted == pytest.approx(row.mfu_formula, rel=0.03)


def test_flops_of_a_small_model_differ_by_the_attention_backward():
    """The formula counts six products of attention; a fused backward recomputes one more."""
    summary = predict(Plan("qwen3-0.6b", sequence=2048), suggest=False).summary
    facts, row = summary.facts, summary.headline
    assert (
        facts is not None and row is not None and row.mfu_formula is not None and row.mfu_counted is not None
    )
    formula = formula_flops_per_token(facts, 2048)
    recomputed = facts.layers * facts.heads * facts.head_dimensions * 2048
    excess = row.mfu_counted / row.mfu_formula - 1
    assert excess == pytest.approx(recomputed / formula, abs=0.01) or abs(excess) < 0.01


def test_what_does_not_fit_is_an_answer():
    prediction = predict(Plan("qwen3-8b", sequence=2048))
    assert prediction.shortage is not None
    text = prediction.shortage.sentence()
    assert (text.startswith("does not fit, by ") and "first at model.layers." in text) or "first at" in text
    assert "held by" in text
    assert prediction.shortage.missing > 0
    assert any(found.fits for _, found in prediction.fixes), [name for name, _ in prediction.fixes]
    json.dumps(prediction.as_json())


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
