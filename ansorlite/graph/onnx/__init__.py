"""Step `import`: ONNX models -> `Graph`; open `load.py` first.

`read` parses a file and bounds what it says, `functions` writes out functions and old opsets,
`node` checks nodes against ONNX's schemas, `table` has one reader for each operator. Readers stand
by topic in the other modules; a reader emits operators of `graph.ops` through a `context.Context`.
"""
