"""The environment of a command on a pod: the image's, RunPod's, the request's, and what marks the process as ours."""

import os
from pathlib import Path

from testbed.runpod import watchdog
from testbed.runpod.state import PodRecord
from testbed.services import debian

NONCE = "BOOTSTRAP_NONCE"
PARENT_LINES = ("LANG", "LC_ALL")  # taken from the emulator's own environment when set
# fault -> what the pod's python3 is told
AGENT_FAULTS = {"agent_dies": "dies", "agent_cut_off": "cut_off"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(pod: PodRecord, bin_dir: Path, api_url: str) -> dict[str, str]:
    """Make the environment. `bin_dir` has the programs of the pods' image that are not this machine's."""
    skew = pod.fault("clock_skew")
    agent = next((how for kind, how in AGENT_FAULTS.items() if pod.fault(kind)), None)
    slurm = debian.unpacked(debian.SLURM, "slurmctld") if pod.fabric_ip else debian.Unpacked()
    return {
        "PATH": ":".join([str(bin_dir), *slurm.places, SYSTEM_PATH]),
        "LANG": "C.UTF-8",
        **{name: os.environ[name] for name in PARENT_LINES if name in os.environ},
        **slurm.environment,
        "HOME": str(pod.home),
        "PIP_TARGET": str(pod.home.parent / "site-packages"),
        "PYTHONPATH": str(pod.home.parent / "site-packages"),
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        **{name: text for name, text in pod.env.items() if not (name == NONCE and pod.fault("no_nonce"))},
        "RUNPOD_POD_ID": pod.id[::-1] if pod.fault("wrong_pod_id") else pod.id,
        "RUNPOD_API_KEY": pod.api_key,
        "RUNPOD_API_BASE_URL": api_url,
        "RUNPOD_POD_HOSTNAME": f"{pod.id}-{pod.machine_id[:8]}",
        "RUNPOD_DC_ID": pod.data_center,
        "RUNPOD_GPU_COUNT": str(pod.gpu_count),
        "RUNPOD_GPU_NAME": pod.gpu_type,
        "RUNPOD_PUBLIC_IP": "127.0.0.1",
        "RUNPOD_TCP_PORT_22": str(pod.ssh_port),
        **({"EMULATED_CLOCK_SKEW_S": str(int(skew.seconds))} if skew else {}),
        **({"EMULATED_AGENT": agent} if agent else {}),
        **({"EMULATED_FAULTS": "1"} if pod.faults else {}),
        watchdog.MARK: str(pod.home.parent),
    }
