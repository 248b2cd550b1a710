"""The operators of graphs, one entry each: `table.OPERATORS` by name, `op.Op` says what is in one.

An operator's shape, numpy meaning, expression and layout stand together in the file of its topic.
"""
