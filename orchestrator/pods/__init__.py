"""From a recorded intent to a working pod, and to its end.

create.py            asks RunPod for the pod of a worker
bringup.py           runs the stages in order; bringup_context.py is what they share
boot_stages.py       waits for RunPod: the pod runs, and has an SSH address
bringup_stages.py    the stages over SSH, from the first connection to the first heartbeat
machine_stages.py    checks the machine by the output of probe_scripts.py
host_identity.py     proves that the host at the pod's address is the pod
bundle.py            the agent and the user's code, as sent to a pod
agent_control.py     starts, finds and stops the agent over SSH; agent_commands.py has the command lines
ask_pod.py           asks the pod of a silent worker whether its agent runs
teardown.py          ends a worker; final_snapshot.py keeps its last facts
host_strikes.py      records which machine or place a failure counts against
provider_cache.py    prices and volumes, as RunPod last answered
latest.py            the newest pods and rows, for code that waits for a change
"""
