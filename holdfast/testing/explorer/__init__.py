"""Explorer: a workflow under every crash.

Begin with search.py: it runs a workflow in a simulated world (holdfast/testing/simulation) once undisturbed, then once
for every boundary and every outcome. oracle.py says whether the database kept its promises, effects.py what the
workflow did to the world outside, report.py tells it in words.
"""
