"""Ship worker logs to S3.

shipper.py      ships one worker's streams by byte offset, in rounds
ledger.py       what the database knows of the pieces of a stream
pieces.py       pieces and losses in the database and in S3
pod_files.py    the log files on the pod, over SSH
schedule.py     which worker is due
budget.py       bounds the bytes that one worker may cost
generations.py  a truncated or rotated stream continues as a new generation
attempt_log.py  the log of one attempt at a task, read from S3
"""
