"""How many workers pay for themselves: rules of scaling, and their replay on recorded tasks. Pure.

`statistics.py` has what the learned rule knows of a pool, `windows.py` how long it keeps an idle worker, `waiting.py`
what one more worker saves. `learned.py` and `fixed.py` are two rules (`rule.py`) that `replay.py` runs in virtual time,
one pool of `pool_replay.py` for each pool, within the dollars of `daily_budget.py`; `outcome.py` sums up the result.

The waiting of one task for one second is worth `wait_price` seconds of one GPU.
"""
