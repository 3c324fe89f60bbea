"""A Slurm cluster on the fleet: what it needs, and the next step of it and of each of its nodes. Pure.

`plan.py` decides from the rows (`rows.py`) and the probed nodes (`readings.py`), which `view.py` combines; `actions.py`
lists what it may ask for. `diagnoses.py` says what is wrong. The states are in core/cluster_states.py, the number of
workers in core/cluster_scaling.py.
"""
