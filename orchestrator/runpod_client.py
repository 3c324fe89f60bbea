"""`get_pod_ssh_details`, as operators' own snippets import it. Nothing in the orchestrator itself uses it."""

import os
from typing import TypedDict

try:
    import requests
    import runpod
    from runpod.error import RunPodError

    from orchestrator.adapters.runpod_fields import Malformed
    from orchestrator.adapters.runpod_replies import port_error, ssh_address
    from orchestrator.config.env_file import read_env_file
    from orchestrator.config.environment import load
    from orchestrator.ports import ApiAuth
except ModuleNotFoundError as error:
    fix = "run this with the interpreter that has the packages: .venv/bin/python of the repository"
    raise ModuleNotFoundError(f"{error}; fix: {fix}", name=error.name) from None


class SshDetails(TypedDict):
    """Where a pod's sshd can be reached."""

    ip: str
    port: int


def get_pod_ssh_details(pod_id: str, api_key: str | None) -> SshDetails | None:
    """Return the public address of the pod's port 22. None while RunPod shows none, and for an unknown pod.

    Raises ports.ApiAuth for a key that is missing or refused, and ports.Unavailable where RunPod gives no clear answer.
    """
    if not api_key:
        raise ApiAuth("get_pod_ssh_details: no API key; fix: set RUNPOD_API_KEY")
    read_env_file()
    os.environ["RUNPOD_API_BASE_URL"] = load().runpod_api_base_url  # the SDK reads it at each call
    doing = f"look at pod {pod_id}"
    try:
        record = runpod.get_pod(pod_id, api_key=api_key)
        host, port = (None, None) if record is None else ssh_address(record)
    except (RunPodError, requests.RequestException, Malformed, ValueError) as error:
        raise port_error(error, doing) from error
    return None if host is None or port is None else SshDetails(ip=host, port=port)
