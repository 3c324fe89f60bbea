"""Periodic jobs of the leader in addition to its ticks. Each file has one job; its `step` gets the lease's term.

conditions.py    the conditions of the fleet: for health, metrics and alerts
alerts.py        compares conditions with alerts, and writes messages
outbox.py        sends messages about tasks and alerts
schedules.py     submits the tasks of recurring schedules
bulk_changes.py  cancels or retries all tasks that fit a filter
pod_requests.py  answers pods that call PostgREST in place of the gateway
clusters.py      probes the members of Slurm clusters, and carries out their plans
traces.py        exports spans of attempts that have ended
scaling_reviews.py  what each rule of scaling would have cost in the last week; review_process.py replays
"""
