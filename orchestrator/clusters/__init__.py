"""Slurm on the members of a cluster: its configuration, its key, and the operations on one pod over SSH.

`core/clusters/` decides; this package carries out. `node.py` has one function for each operation. Every call has a
deadline. Every answer of a pod is bounded, and decoded to a value or to unknown.
"""
