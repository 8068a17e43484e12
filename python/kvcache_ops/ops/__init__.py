"""The operators from Python: caches and their specification, index inputs, calls on numpy arrays, nodes of graphs."""
