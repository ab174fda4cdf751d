"""The PyTorch device `neuron`: registration, memory, random state, streams, and `torch.neuron`."""
