"""Everything that needs a GPU to be proved or measured, in one run: `make gpu`.

What belongs here: the parts of that run, each in a process of its own, and how they report. Needs
torch, triton, numpy and einops, nothing else. ``python -m benchmarks.gpu --tiny`` runs the same
script on a CPU with sizes that prove the script and measure nothing.
"""
