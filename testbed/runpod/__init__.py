"""An emulator of RunPod: its API, and pods that are local processes with SSH.

server.py            Emulator, all of it in one process; `python -m testbed.runpod` runs it
api.py               RunPod's REST API v2, with operations.py, catalog_operations.py, request_schemas.py,
                     serializers.py and replies.py
state.py             the true state: pods, stock, prices, money; catalog.py lists what can be rented
pods.py              the processes of a pod: sshd.py, fake_tools.py; watchdog.py ends what is left
in_process_pod.py    a pod without processes, for a fleet of a thousand
faults.py            what can go wrong; control.py is the API that injects it
fabric.py            the global network: the pods' private addresses; daemons.py has the pods' Slurm and munge;
                     cluster_controls.py is the API for their faults and for RunPod's own clusters
"""

from testbed.runpod.server import Emulator

__all__ = ["Emulator"]
