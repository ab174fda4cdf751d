"""Module paths through the global hooks."""

import gc

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from opentrn.trace.modules import ModuleObserver


class Events:
    def __init__(self):
        self.stack, self.paths, self.outermost, self.indices, self.learned = [], [], [], [], []
        self.observer = ModuleObserver(
            self.enter,
            self.leave,
            self.outermost.append,
            lambda module, index: self.indices.append(index),
            self.learn,
        )

    def enter(self, path):
        self.stack.append(path)
        self.paths.append(path)

    def leave(self):
        self.stack.pop()

    def learn(self, module):
        self.learned.append(type(module).__name__)

    def __enter__(self):
        self.observer.install()
        return self

    def __exit__(self, *error):
        self.observer.remove()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_paths():
    with Events() as events:
        Net()(torch.ones(1, 2))
    assert events.paths == [
        "Net", "layers.0", "layers.0.0", "layers.0.1", "layers.1", "layers.1.0", "layers.1.1",
    ]  # fmt: skip
    assert events.stack == []
    assert events.learned == ["Net"]
    assert len(events.outermost) == 1


def test_removed_hooks_are_silent():
    with Events() as events:
        pass
    Net()(torch.ones(1, 2))
    assert events.paths == []
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_an_exception_unwinds():
    net = Net()
    with Events() as events:
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
        assert events.stack == []
        net(torch.ones(1, 2))
    assert events.stack == []


def test_an_interrupt_is_healed_at_the_next_call():
    """always_call hooks do not run for KeyboardInterrupt."""

    class Interrupted(nn.Module):
        armed = True

        def forward(self, x):
            if self.armed:
                raise KeyboardInterrupt
            return x

    net = nn.Sequential(nn.Identity(), Interrupted())
    with Events() as events:
        with pytest.raises(KeyboardInterrupt):
            net(torch.ones(1))
        Interrupted.armed = False
        events.paths.clear()
        net(torch.ones(1))
        assert events.stack == []
    assert events.paths == ["Sequential", "0", "1"]


def test_modules_added_later_and_dead_ones():
    net = Net()
    with Events() as events:
        net(torch.ones(1, 2))
        net.layers.append(nn.Linear(2, 2))
        net(torch.ones(1, 2))
        assert events.paths[-1] == "Linear"
        known = len(events.observer._known)
        other = Net()
        other(torch.ones(1, 2))
        assert len(events.observer._known) == known + 8
        del other
        events.outermost.clear()
        gc.collect()
        assert len(events.observer._known) == known


def test_recomputation_is_no_call_of_its_own():
    net, first = Net(), nn.Linear(2, 2)
    with Events() as events:
        torch.utils.checkpoint.checkpoint(net, first(torch.ones(1, 2)), use_reentrant=False).sum().backward()
    assert events.paths.count("layers.1.0") == 2, "the forward ran twice"
    assert [type(module).__name__ for module in events.outermost] == ["Linear", "Net"]


def test_embedding_indices():
    with Events() as events:
        nn.Embedding(4, 2)(torch.tensor([1, 2, 3]))
    assert [index.tolist() for index in events.indices] == [[1, 2, 3]]


def test_compiled_graphs_are_left_alone():
    """The hooks must neither break a graph nor run inside one."""
    net = Net()
    with Events() as events:
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        x = torch.ones(1, 2)
        assert torch.equal(compiled(x), net(x))
        events.paths.clear()
        compiled(x)
        assert events.stack == []
    assert "layers.0.0" not in events.paths


def test_cost_per_call():
    """No more than three times what a pair of empty hooks costs (each the best of seven)."""
    import time

    net, x = nn.Identity(), torch.ones(1)

    def seconds():
        best = float("inf")
        for _ in range(7):
            start = time.process_time()
            for _ in range(3000):
                net(x)
            best = min(best, time.process_time() - start)
        return best

    plain = seconds()
    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(lambda module, arguments: None),
        torch.nn.modules.module.register_module_forward_hook(lambda module, arguments, output: None),
    ]
    empty = seconds() - plain
    for handle in handles:
        handle.remove()
    with Events() as events:
        events.observer._enter, events.observer._leave = (lambda path: None), (lambda: None)
        watched = seconds() - plain
    print(f"{watched / 3e-3:.2f} µs per module call, empty hooks {empty / 3e-3:.2f}")
    assert watched < 3 * empty
