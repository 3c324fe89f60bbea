"""Slurm on the members of a cluster: its configuration, its key, and the operations on one pod over SSH.

`core/clusters.py` decides; nothing here does. `node.py` has one function for each operation; every call has a deadline,
and every answer of a pod is bounded and decoded to a value or to unknown.
"""
