"""Explorer: a workflow under every crash.

Begin with search.py: it runs a workflow in a simulated world (holdfast/testing/simulation) once without a fault, then
once for every boundary and every outcome. oracle.py says whether the database kept its promises, effects.py what the
workflow did to the outside world, report.py puts it into words.
"""
