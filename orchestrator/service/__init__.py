"""The service: the control loop and its HTTP server as one process.

entry_points.py  run until a signal; run one tick; lead for one maintenance job
control_loop.py  builds the loop with everything that it uses
adapters.py      opens the connections of the process, more of them while it leads
jobs.py          builds the jobs of a leader; clusters.py builds the one for clusters
http.py          opens the HTTP application on its own thread
tokens.py        the tokens of workers
process.py       signals, limits, garbage collection
"""

from orchestrator.service.entry_points import lead_for, once, run

__all__ = ["lead_for", "once", "run"]
