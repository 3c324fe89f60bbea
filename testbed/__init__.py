"""Replacements for the outside world, for the demo and the tests: never installed with the product.

runpod/     an emulator of RunPod's API, whose pods are local processes with SSH
services/   embedded PostgreSQL, PostgREST and S3, and the processes that hold them
stack.py    all of it on loopback, with `orchestrator run` as a child process
audit.py    counts the results three ways: database, provider's ledger, bytes in S3
"""
