"""From a recorded intent to a working pod, and to its end.

create.py            asks RunPod for the pod of a worker
bringup.py           runs the stages in order; bringup_stages.py, boot_stages.py and machine_stages.py hold them
host_identity.py     proves that the host at the pod's address is the pod
bundle.py            the agent and the user's code, as sent to a pod
agent_control.py     start, find and stop the agent over SSH; agent_commands.py has the command lines
teardown.py          ends a worker; final_snapshot.py keeps its last facts
provider_cache.py    prices and volumes, as RunPod last answered
"""
