"""Alias of `orchestrator.runpod_client`."""

from orchestrator.runpod_client import SshDetails, get_pod_ssh_details

__all__ = ["SshDetails", "get_pod_ssh_details"]
