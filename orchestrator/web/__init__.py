"""HTTP: health for the platform, and the gateway through which agents reach the database.

server.py     the server, on its own thread; app.py has the routes; api/ is `/api/v1`
gateway.py    the worker functions; long_poll.py and wakeups.py let claims wait, heartbeat_batch.py combines heartbeats
limits.py, connections.py, request_bodies.py, token_buckets.py, log_sampling.py   limits for callers
token_renewal.py, role_routing.py, errors.py, metrics.py, root_page.py           one subject each
"""
