"""Work that a leader repeats beside its ticks: each file has one job, with a `step` that gets the term of the lease.

conditions.py   the conditions of the fleet: for health, metrics and alerts
alerts.py       compares conditions with alerts, and sends messages
schedules.py    submits the tasks of recurring schedules
webhooks.py     sends messages about tasks
pod_requests.py  answers pods that call PostgREST in place of the gateway
traces.py       exports spans of attempts that have ended
"""
