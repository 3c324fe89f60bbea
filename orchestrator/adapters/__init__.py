"""The implementations of the ports: the only modules that know PostgreSQL, RunPod, SSH or S3.

The database   postgres.py and supabase.py are the transports; functions.py lists the SQL functions; store.py calls
               them for the loop, operator_rows.py and finder.py for people, api_rows.py for the API, *_store.py for one
               subject each; rows.py and cluster_rows.py decode
RunPod         runpod.py calls; runpod_requests.py and runpod_replies.py are the content; runpod_lanes.py, the order
Pods           ssh.py connects, ssh_session.py runs commands and copies files, ssh_pool.py shares connections
Object store   s3.py, s3_signing.py
Messages       webhook_sender.py, alert_sender.py; otlp.py exports traces
"""
