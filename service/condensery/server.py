"""The composition root: the one place that wires settings, pool, index and doors."""
