"""Pure decisions about the fleet. This package does no I/O, reads no clock or environment, and writes no log.

Begin with model.py (the planner's input), actions.py (its output) and plan.py (the phases of one tick).

The life of a worker    states.py has the transition table, stages.py the stages of bring-up
                        lifecycle.py decides the next action of a worker; termination.py decides it at the end
                        liveness.py, silence.py: whether it can be heard; pod_tracking.py, pod_evidence.py: its pod
                        guards.py, fitness.py: findings of its machine, and tasks that fail; rollout.py: its release
                        orphans.py: pods without a worker; rescue.py: tasks whose lease has expired
How many workers        scaling.py has the formula, sharing.py divides offers between pools, pool_size.py is the result
                        breaker.py, budget.py, offers.py, store_outage.py: what limits spawns; blocked.py: the reasons
Catalogues of codes     failures.py, task_failures.py, exit_causes.py, findings.py, xids.py; meanings.py: their fields
Checks of a machine     machine_checks.py, gpus.py, interconnect.py, gpu_profiles.py, images.py; host_strikes.py
Clusters                cluster_states.py, cluster_scaling.py, clusters/
"""
