"""The ports made real: the only modules that know Postgres, RunPod, SSH or S3."""
