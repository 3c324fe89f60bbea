"""The implementations of the ports: the only modules that know PostgreSQL, RunPod, SSH or S3."""
