"""PyTorch in: `load.from_torch` for a module, `backend.torch_backend` for `torch.compile`.

Both bring a graph of aten operators; `table.READERS` writes each as operators of `graph.ops`.
torch is imported where a function needs it (extra `torch`).
"""
