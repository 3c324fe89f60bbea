"""The name under which operators' snippets import `orchestrator.database` and `orchestrator.runpod_client`."""
