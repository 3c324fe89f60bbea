"""Explanations of the fleet's state: conditions, causes and fixes. The CLI, the metrics and the alerts show them.

Conditions    facts.py is what is known, fact_sources.py makes it from a report or a tick; rules.py and *_rules.py find
              conditions in it; condition_kinds.py has their texts; alerts.py decides which become messages
Explanations  workers.py, tasks.py, scaling.py and clusters.py for `explain`; causes.py looks codes up
The report    collect.py asks, environment.py, deployment.py, drift.py and change.py compare
Costs         cost.py, account.py, gpu_offers.py
doctor/       the set-up checks
"""
