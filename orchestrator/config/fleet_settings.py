"""The settings of the fleet: how many workers, on which machines, and what they run."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from orchestrator.config.names import CloudKind, Image, MountPath, PolicyName, Program
from orchestrator.config.setting import setting
from orchestrator.config.types import (
    Batch,
    Centers,
    Count,
    Deadlines,
    Dollars,
    GpuTypes,
    Handlers,
    Seconds,
    Variables,
)
from orchestrator.core.economics.policies import ScalingPolicy


class Scaling(BaseModel):
    """How many workers."""

    min_active_gpus: Count = setting(
        0,
        "The number of workers of a pool that stay even if there is no work. At most MAX_ACTIVE_GPUS, unless that is "
        "0.",
        pool="min_active",
    )
    max_active_gpus: Count = setting(
        2, "The largest number of workers of a pool at one time. 0 switches spawning off.", pool="max_active"
    )
    scaling_policy: PolicyName = setting(
        ScalingPolicy.FIXED,
        "How the number of workers follows the tasks. fixed: so many tasks for each worker, and fixed times for idle "
        "workers. learned: a worker starts when the "
        "waiting that it saves is worth its boot, and an idle one stays as long as the recent gaps between tasks make "
        "that cheaper than another boot. Pools of kind cluster follow their cluster.",
        pool="scaling_policy",
    )
    wait_price: Annotated[float, Field(ge=0, le=1_000)] = setting(
        1.0,
        "With SCALING_POLICY=learned: what one second of one task's waiting is worth, in seconds of one GPU.",
        pool="wait_price",
    )
    max_wait_sec: Seconds | None = setting(
        None,
        "With SCALING_POLICY=learned: the time after which a waiting task gets a boot, within all limits, even if that "
        "is not worth it. Empty means four boots.",
        unit="seconds",
        pool="max_wait_s",
    )
    tasks_per_gpu_threshold: Annotated[int, Field(ge=1, le=100_000)] = setting(
        3, "The number of tasks (ready to run, or running) for each worker.", pool="tasks_per_gpu"
    )
    machines_to_keep_idle: Count = setting(
        0,
        "The number of idle workers of a pool to keep in addition to the busy ones while there is work.",
        pool="keep_idle",
    )
    gpu_idle_timeout_sec: Seconds = setting(
        600, "The time after which an idle worker is terminated.", unit="seconds", pool="idle_timeout_s"
    )
    gpu_overcapacity_idle_timeout_sec: Seconds = setting(
        30,
        "The time after which an idle worker is terminated if there are more workers than the target.",
        unit="seconds",
        pool="overcapacity_idle_timeout_s",
    )
    spawning_grace_period_sec: Seconds = setting(
        180,
        "The time during which a new worker is not cancelled for lack of work. Later it is cancelled only if the rest "
        "of its boot costs more than a new boot.",
        unit="seconds",
    )
    scale_down_grace_period_sec: Seconds = setting(
        60, "The time after a scale-up during which no worker is removed as surplus.", unit="seconds"
    )
    orchestrator_poll_sec: Seconds = setting(
        30,
        "The time between two ticks while nothing changes. A change in the database starts a tick at once.",
        unit="seconds",
    )
    spawning_timeout_sec: Seconds = setting(900, "The time for a whole bring-up, all stages together.", unit="seconds")
    bringup_deadlines: Deadlines = setting(
        (),
        "Deadlines of single stages, in place of the built-in ones: pod_running=900,tcp=30 (every stage from "
        "pod_running on has one). SPAWNING_TIMEOUT_SEC ends a bring-up in any case.",
        unit="seconds",
    )
    graceful_shutdown_timeout_sec: Seconds = setting(
        600, "The time that a draining worker has to finish its task.", unit="seconds"
    )
    task_stuck_timeout_sec: Seconds = setting(
        1200,
        "The time without a sign of life (report, output, file, processor time) after which a running task is stuck.",
        unit="seconds",
    )
    heartbeat_timeout_sec: Seconds = setting(
        60,
        "The time without a heartbeat after which a worker counts as lost. Less than DEADMAN_TIMEOUT_SEC.",
        unit="seconds",
    )
    max_worker_failure_rate: Annotated[float, Field(ge=0, le=1)] = setting(
        0.8,
        "The breaker of a pool trips if more than this share of its bring-ups failed within the window. Then one "
        "canary at a time is started until one succeeds. A worker that was promoted and fails within the window, "
        "before it completed a task, counts as failed. After such a failure, the breaker closes only if a canary "
        "completes a task or outlives the window.",
        unit="share",
    )
    failure_window_minutes: Annotated[float, Field(gt=0, le=1_440)] = setting(
        5, "The window of the breaker.", unit="minutes"
    )
    min_workers_for_rate_check: Annotated[int, Field(ge=1, le=100)] = setting(
        5, "The least number of bring-ups that must have ended within the window before the breaker trips."
    )
    worker_max_consecutive_failures: Annotated[int, Field(ge=1, le=100)] = setting(
        5,
        "The number of different tasks that may fail in a row on one worker. Then the worker claims no task until the "
        "orchestrator knows whether the worker or the release is at fault.",
    )
    max_hourly_cost_usd: Dollars | None = setting(
        None, "The largest cost of all workers per hour. Empty means no limit.", unit="US dollars per hour"
    )
    daily_budget_usd: Dollars | None = setting(
        None,
        "The largest cost of all workers per day (UTC). Empty means no limit. The figure includes the cost of "
        "terminating the workers in good order. If it reaches the budget, all workers are drained.",
        unit="US dollars per day",
    )


class Machines(BaseModel):
    """What to rent."""

    pools_file: Path | None = setting(
        None,
        "A TOML file with pools in addition to the default pool, and limits per task type. "
        "orchestrator/config/pools.py has an example.",
    )
    runpod_gpu_type: GpuTypes = setting(
        ("NVIDIA GeForce RTX 4090",),
        "GPU types, in order of preference, comma-separated. If one type has no capacity, the orchestrator tries the "
        "next.",
        pool_key="gpu_types",
    )
    runpod_data_centers: Centers = setting(
        (), "Data centres, in order of preference, comma-separated. Empty means any.", pool_key="data_centers"
    )
    runpod_cloud: CloudKind = setting("SECURE", "SECURE or COMMUNITY.", pool_key="cloud")
    runpod_worker_image: Image = setting(
        "runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04",
        "The image of the pods. It must start an SSH server that accepts PUBLIC_KEY, as RunPod's own images do.",
        pool="image",
        pool_key="image",
    )
    runpod_registry_auth: str | None = setting(
        None,
        "For a private image: the name (or id) of the registry credentials in the RunPod account.",
        pool="registry_auth",
    )
    runpod_storage_name: str | None = setting(None, "The name of a network volume to mount.", pool="volume_name")
    runpod_volume_mount_path: MountPath = setting(
        "/workspace", "The path of the volume on the pod.", pool="volume_mount_path"
    )
    runpod_container_disk_gb: Annotated[int, Field(ge=1, le=10_000)] = setting(
        50, "The size of the container disk.", unit="GB", pool="disk_gb"
    )
    runpod_min_memory_gb: Annotated[int, Field(ge=1, le=4_096)] = setting(
        32, "The least memory for each GPU.", unit="GB", pool="min_memory_gb"
    )
    runpod_min_vcpu: Annotated[int, Field(ge=1, le=512)] = setting(
        8, "The least number of CPUs for each GPU.", pool="min_vcpu"
    )


class WorkerPrograms(BaseModel):
    """What runs on a worker."""

    worker_code_dir: Path | None = setting(
        None,
        "The directory with your handlers. The orchestrator sends it to every worker and checks it by hash. It sends "
        "no .env, keys, caches, or what .orchestratorignore names: doctor code shows the list.",
        limits="at most 50 MiB",
    )
    worker_handlers: Handlers = setting(
        (),
        "The handler of each task type, comma-separated: travel_segment=travel:segment,nightly=cmd:./nightly.sh; "
        "a pool of kind cluster: train=slurm",
        pool_key="worker_handlers",
    )
    worker_tasks_per_claim: Batch = setting(
        1,
        "The number of tasks in one claim. The worker runs them one after the other, reports short ones together, and "
        "returns those that it has not started after two seconds. Use more than 1 only for tasks shorter than a "
        "second.",
        pool="batch",
    )
    worker_setup_command: str | None = setting(
        None, "A command that runs once per pod, before the agent starts: pip install -r requirements.txt"
    )
    worker_env: Variables = setting(
        (),
        "The names of other variables, set here, that handlers and the setup command receive, comma-separated: "
        "HF_TOKEN,HF_HOME. Settings of the orchestrator cannot be among them.",
        pool_key="worker_env",
    )
    worker_python: Program = setting("python3", "The Python interpreter on the pod that runs the handlers.")
    worker_start_command: str | None = setting(
        None,
        "Your own worker program. It runs in place of the agent's handlers; the agent watches it, and its log goes to "
        "S3. Not together with WORKER_HANDLERS.",
    )
    deadman_timeout_sec: Seconds = setting(
        900,
        "The time without contact after which an agent stops itself. It also stops its pod, if the pod has a RunPod "
        "key. More than HEARTBEAT_TIMEOUT_SEC.",
        unit="seconds",
    )
