"""Networks as graphs of operators: import, passes, partition into subgraphs to tune.

In: an ONNX file or a network of `ansorlite.workloads`. Out: a `Partition` of `ComputeDAG`s.
Open `ops/` (the operator set), `passes.py` (`PASSES`), `partition.py` in this order.
"""
