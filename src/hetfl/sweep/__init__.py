"""Many cells, the most valuable first, within a budget: on this machine, through Slurm or through Ray.

A backend is one function, "do these cells until then", see :class:`hetfl.sweep.backend.Backend`. What it does with a
cell is what the stages do, so DVC finds nothing left to train or evaluate.
"""
