"""The report: utilization against published figures, the summary of a recorded run, its three forms."""

import io
import json
import re

import pytest
import torch
from fake_device import FakeDevice
from rich.console import Console
from torch import nn

from opentrn.errors import ConfigurationError, CorruptFileError
from opentrn.explorer import units
from opentrn.explorer.advice import advise
from opentrn.explorer.html import page, write_report
from opentrn.explorer.summary import Share, summarize
from opentrn.explorer.terminal import print_report, sparkline
from opentrn.explorer.utilization import formula_flops_per_token, utilization
from opentrn.trace.counters import Counters
from opentrn.trace.memory import Timeline
from opentrn.trace.model_facts import model_facts
from opentrn.trace.reader import Trace
from opentrn.trace.rebuild import rebuild
from opentrn.trace.record import ModelFacts, RunRecord
from opentrn.trace.session import Session, SessionOptions
from opentrn.trace.steps import make_step

QWEN3_32B = ModelFacts(
    "Qwen3ForCausalLM", 32_762_123_264, 32_762_123_264, 32_762_123_264, 777_912_320, False, 64, 64, 256
)


def test_published_utilization_of_qwen3_32b():
    """14,156 and 11,099 tokens/s on 64 cores of 158 TFLOP/s, sequence 4096, are 30.47 % and 23.89 % MFU."""
    assert formula_flops_per_token(QWEN3_32B, 4096) == pytest.approx(217.675e9, rel=1e-5)
    for tokens, share in ((14_156, 0.3047), (11_099, 0.2389)):
        step = make_step(
            0, "optimizer", Counters(), Counters(completion=10**9), tokens, "embedding", 4096, -1
        )
        assert utilization(step, QWEN3_32B, 158e12, 64).formula == pytest.approx(share, abs=5e-5)


def test_facts_of_qwen3_32b():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_hidden_layers=64,
        num_attention_heads=64, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert model_facts(model) == QWEN3_32B


def test_facts_of_a_mixture_of_experts():
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
        moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    facts = model_facts(model)
    experts = 2 * 8 * 3 * 64 * 32
    assert facts.parameters - facts.active_parameters == experts * 6 // 8
    assert facts.tied_embedding and facts.embedding_parameters == 6400
    assert facts.head_dimensions == 32
    attention = 2 * 4 * 32 * 10
    assert formula_flops_per_token(facts, 10) == 6 * (facts.active_parameters + attention)
    assert formula_flops_per_token(facts, 10, training=False) == 2 * (facts.active_parameters + attention)


def test_facts_where_no_configuration_is_known():
    facts = model_facts(nn.Linear(3, 4))
    assert not facts.recognised and facts.parameters == 16


class Config:
    n_layer, n_head, n_embd = 2, 2, 8


class Tiny(nn.Module):
    def __init__(self, fake):
        super().__init__()
        self.fake, self.config = fake, Config
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)

    def forward(self, index):
        self.fake.run("aten::mm", ns=1000, flops=10**6, bytes=100, phase=1)
        held = self.fake.allocate(3 << 20)
        result = self.head(self.embed(index))
        return result, held


def run(fake, directory=None, steps=4, ended="completed"):
    """A session around a training loop on the fake device; returns the record."""
    model = Tiny(fake)
    fake.allocate(1 << 20, category=1)
    session = Session(fake, SessionOptions("train.py", directory))
    session.start()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        result, held = model(torch.ones(2, 5, dtype=torch.long))
        result.sum().backward()
        fake.run("aten::mm", ns=2000, flops=2 * 10**6, phase=2)
        fake.run("aten::mm", ns=500, flops=10**6, phase=4)
        fake.phase = 2
        fake.free(fake.allocate(10))
        fake.phase = 0
        fake.free(held)
        optimizer.step()
    return session.stop(ended, ["redirected: cuda"])


def test_summary_of_a_run(tmp_path):
    summary = summarize(run(FakeDevice(), tmp_path / "t"))
    row = summary.headline
    assert (row.duration_ns, row.tokens) == (3500, 10)
    assert row.tokens_per_s == pytest.approx(10 / 3500e-9)
    peak = 158e12 * 3500e-9
    assert row.hfu == pytest.approx(4e6 / peak)
    assert row.mfu_counted == pytest.approx(3e6 / peak), "recomputation is not model FLOPs"
    assert row.mfu_formula == pytest.approx(10 * 6 * (160 - 80 + 2 * 2 * 8 * 5) / peak)
    assert {share.name: share.device_ns for share in summary.split} == {
        "forward": 1000, "backward": 2000, "recomputation": 500,
    }  # fmt: skip
    assert summary.basis == "median of 3 steps, the first left out"
    assert (summary.how_timed, summary.modelled_share) == ("modelled", 1.0)
    assert [(o.name, o.count, o.device_ns, o.note) for o in summary.operators] == [
        ("aten::mm", 12, 14000, "matmul")
    ]
    assert summary.modules[0].name in ("outside any module", "Tiny")
    assert summary.peak.categories["activation"] == 3 << 20
    assert summary.notes == ["redirected: cuda"]


def test_simulated_time_is_said_to_be():
    fake = FakeDevice()
    session = Session(fake, SessionOptions("x"))
    session.start()
    fake.run(ns=300, simulated=True)
    fake.run(ns=100)
    summary = summarize(session.stop("completed"))
    assert summary.how_timed == "simulated, 25 % of device time modelled"
    assert summary.headline.kind == "span"


def test_nothing_ran():
    fake = FakeDevice()
    session = Session(fake, SessionOptions("x"))
    session.start()
    summary = summarize(session.stop("raised ValueError: no"))
    assert any("nothing ran on the device" in note for note in summary.notes)
    text = terminal(summary)
    assert "raised ValueError: no" in text
    assert page(summary)


def test_an_empty_record_has_a_report():
    summary = summarize(RunRecord())
    assert terminal(summary) and page(summary) and json.dumps(summary.as_json())


def terminal(summary):
    file = io.StringIO()
    print_report(summary, Console(file=file, width=140))
    return file.getvalue()


def test_terminal_page(tmp_path):
    text = terminal(summarize(run(FakeDevice(), tmp_path / "t", steps=20)))
    for figure in (
        "3.50 µs",
        "2.86 M",
        "modelled; median of 19 steps",
        "measured",
        "activation",
        "12 more",
        "█",
    ):
        assert figure in text, figure
    assert len(text.splitlines()) < 70, "one page"


def test_html_page_needs_no_network(tmp_path):
    summary = summarize(run(FakeDevice(), tmp_path / "t"))
    write_report(summary, tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text()
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", html)
    assert html.count("<svg") == 2 and "activation" in html
    from html.parser import HTMLParser

    class Balanced(HTMLParser):
        void = {"meta", "line", "polygon", "polyline"}  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attributes):
            if tag not in self.void:
                self.open.append(tag)

        def handle_endtag(self, tag):
            if tag not in self.void:
                assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_html_escapes_what_the_script_is_called(tmp_path):
    record = run(FakeDevice())
    record.command = "<script>alert(1)</script>.py"
    assert "<script>" not in page(summarize(record))


def test_a_report_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot write the report"):
        write_report(summarize(RunRecord()), tmp_path / "no" / "r.html")


def test_json_is_plain_and_says_how(tmp_path):
    data = json.loads(json.dumps(summarize(run(FakeDevice(), tmp_path / "t")).as_json()))
    assert data["headline"]["tokens"] == 10
    assert data["how"]["duration_ns"] == "modelled"
    assert data["how"]["measured_ns"].startswith("measured")
    assert len(data["steps"]) == 4


def test_the_recorded_run_reads_back_equal(tmp_path):
    record = run(FakeDevice(), tmp_path / "t")
    again = rebuild(Trace(tmp_path / "t"))
    assert again.steps == record.steps and again.span == record.span and again.peak == record.peak
    assert summarize(again).headline == summarize(record).headline
    classes = [total.operator_class for total in again.totals]
    assert classes == ["matmul"]


def test_a_killed_run_is_rebuilt_from_its_tables(tmp_path):
    """As if killed before its end: trace.json as at the start, no steps, no totals."""
    record = run(FakeDevice(), tmp_path / "t")
    for table in ("steps", "totals"):
        for path in Trace(tmp_path / "t").files(table):
            path.unlink()
    metadata = json.loads((tmp_path / "t" / "trace.json").read_text())
    for key in ("run", "ended", "stopped"):
        del metadata[key]
    (tmp_path / "t" / "trace.json").write_text(json.dumps(metadata))
    again = rebuild(Trace(tmp_path / "t"))
    assert again.ended == "killed before its end"
    assert (again.totals[0].count, again.totals[0].device_ns) == (12, 14000)
    assert again.span.flops == record.span.flops
    assert again.span.recompute_ns == record.span.recompute_ns
    assert again.peak.allocated == record.peak.allocated
    assert again.peak.categories == record.peak.categories
    assert "killed" in terminal(summarize(again))


def test_a_description_that_does_not_fit(tmp_path):
    run(FakeDevice(), tmp_path / "t")
    metadata = json.loads((tmp_path / "t" / "trace.json").read_text())
    metadata["run"] = {"span": {"nonsense": 1}}
    (tmp_path / "t" / "trace.json").write_text(json.dumps(metadata))
    with pytest.raises(CorruptFileError, match="does not fit"):
        rebuild(Trace(tmp_path / "t"))


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, ()),
        ({"split": [Share("device idle", 1, 0.5)]}, ("idle for 50.0 %", "torch.compile")),
        ({"classes": [Share("copy", 1, 0.2)]}, ("20.0 %", "contiguous")),
        ({"memory_capacity": 3 << 20}, ("100.0 % full", "activation checkpointing")),
        ({"split": [Share("recomputation", 1, 0.4)]}, ("recomputation takes 40.0 %", "fewer layers")),
        ({"classes": [Share("unlisted", 1, 0.01)]}, ("1.00 %", "costed as pointwise")),
    ],
)
def test_advice(change, words):
    summary = summarize(run(FakeDevice()))
    for name, value in {"split": [], "classes": [], **change}.items():
        setattr(summary, name, value)
    advice = advise(summary)
    assert len(advice) == (1 if words else 0)
    assert all(word in advice[0] for word in words)


def test_sparkline_shows_the_peak_and_keeps_levels():
    line = sparkline(Timeline([0, 10, 50, 60, 100], [0, 80, 40, 0, 0]), 10)
    assert len(line) == 10
    assert line[1] == "█" and line[2:5] == "███" and line[5] == "▄" and line[-1] == " "


@pytest.mark.parametrize(
    "function, value, text",
    [
        (units.time, 1_500_000, "1.50 ms"),
        (units.time, 999, "999 ns"),
        (units.time, 12_340_000_000, "12.3 s"),
        (units.size, 3 << 30, "3 GiB"),
        (units.size, 1536, "1.50 KiB"),
        (units.size, 12, "12 B"),
        (units.amount, 14_156, "14.2 k"),
        (units.amount, 2_500_000, "2.50 M"),
        (units.percent, 0.3047, "30.5 %"),
        (units.percent, 0.0389, "3.89 %"),
        (units.percent, 0.00001234, "0.0012 %"),
        (units.percent, 0.0000001, "< 0.001 %"),
        (units.percent, 0, "0.0 %"),
    ],
)
def test_units(function, value, text):
    assert function(value) == text
