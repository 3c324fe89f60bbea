"""Ship worker logs to S3.

shipper.py      copies one worker's streams by byte offset
schedule.py     which worker is due
budget.py       bounds the bytes that one worker may cost
generations.py  a truncated or rotated stream continues as a new generation
"""
