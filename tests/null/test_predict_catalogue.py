"""Models by name and configurations by path; what is wrong with a configuration is said before anything
runs."""

from __future__ import annotations

import json

import pytest

from opentrn.errors import ConfigurationError
from opentrn.predict import Plan, catalogue

NAMED = [
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "deepseek-v3",
    "mixtral-8x7b",
    "gpt2",
    "vit-base",
]
GOOD = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


@pytest.mark.parametrize("name", NAMED)
def test_named_models_are_there_with_their_source(name):
    model = catalogue.find(name)
    assert model.source.startswith("https://huggingface.co/") and model.parameters
    catalogue.check(model.config, name)


def test_names_as_the_hub_writes_them():
    assert catalogue.find("Qwen/Qwen3-32B").name == "qwen3-32b"
    assert catalogue.find("mixtral").name == "mixtral-8x7b"


def test_unknown_model_names_close_ones():
    with pytest.raises(ConfigurationError, match=r"did you mean .*qwen3-32b"):
        catalogue.find("qwen3-33b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": None}, "no field 'model_type'"),
        ({"num_attention_heads": 5}, "no multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "exceeds the 4 experts"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
    ],
)
def test_contradictory_configurations(tmp_path, change, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigurationError, match=words) as caught:
        catalogue.find(str(path))
    assert "what to do" in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [("{", "is not JSON"), ("[]", "holds no JSON object")])
def test_files_that_are_no_configuration(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        catalogue.find(str(path))


def test_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        catalogue.find(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    "wrong", [{"mode": "serve"}, {"precision": "fp4"}, {"batch": 0}, {"optimizer": "lion"}]
)
def test_impossible_plans(wrong):
    with pytest.raises(ConfigurationError, match="what to do"):
        Plan("qwen3-0.6b", **wrong)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--precision", "int4"], ["int4", "bf16", "fp32", "amp"]),
        (["--mode", "serve"], ["serve", "train", "prefill", "decode"]),
        (["--optimizer", "lion"], ["lion", "adamw-fused", "adamw-foreach", "sgd"]),
        (["--attention", "flash"], ["flash", "sdpa", "eager"]),
        (["--batch", "0"], ["--batch", "1"]),
        (["--cores", "-1"], ["--cores", "1"]),
    ],
)
def test_options_are_enumerated(arguments, words, capsys):
    from opentrn.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["predict", "qwen3-8b", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and all(word in said for word in words), said


def test_plans_check_what_the_command_line_does_not():
    for name, value in (("mode", "serve"), ("precision", "int4"), ("optimizer", "lion"), ("batch", 0)):
        with pytest.raises(ConfigurationError, match=name):
            Plan("qwen3-8b", **{name: value})
