"""An emulated provider for the demo and the tests: a RunPod API server whose pods are local processes with SSH.

    server.py      Emulator, the whole of it in one process; `python -m orchestrator.emulator` runs it
    api.py  operations.py  bodies.py  views.py  replies.py      RunPod's REST v2
    world.py  catalog.py      the hidden truth: pods, stock, prices, money
    pods.py  sshd.py  smi.py  watchdog.py      the pods' bodies, and how nothing of them is left behind
    light.py  light_agent.py  a pod without processes, for a thousand of them
    faults.py  control.py     what can be made to go wrong, and the API to do it
    postgres.py  s3.py  loopback.py     embedded servers for the rest of the stack

Nothing in the production path imports this package.
"""

from orchestrator.emulator.server import Emulator

__all__ = ["Emulator"]
