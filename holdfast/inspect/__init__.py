"""Inspect: everything that only reads.

Views of runs, nodes, waits, branches and paths, why a run stands where it stands, and the doctor. It needs a store and
a clock, never an engine: what it tells is the same from every process, also while no engine runs.
"""
