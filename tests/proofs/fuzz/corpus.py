"""Real input, as RunPod, nvidia-smi, df and operators write it."""

from typing import Any

POD: dict[str, Any] = {
    "id": "xyz123abc",
    "name": "gpu-20261121_120000-0a1b2c3d",
    "status": "RUNNING",
    "actions": ["stop", "terminate"],
    "image": "runpod/pytorch:2.4.0",
    "disk": 50,
    "ports": ["22/tcp"],
    "env": {"ORCHESTRATOR_FLEET_ID": "default", "ORCHESTRATOR_WORKER_ID": "gpu-20261121_120000-0a1b2c3d"},
    "mounts": {},
    "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 1, "vcpuCount": 8, "memory": 41},
    "cloud": "SECURE",
    "dataCenterId": "EU-RO-1",
    "cudaVersion": "12.8",
    "machineId": "m-1",
    "ssh": {
        "proxy": {"host": "ssh.runpod.io", "port": 22},
        "direct": {"host": "1.2.3.4", "port": 40_022, "username": "root"},
    },
    "cost": 0.69,
    "runtime": {
        "uptime": 12,
        "gpus": [{"util": 0}],
        "ports": [{"private": 22, "public": 40_022, "type": "tcp", "ip": "1.2.3.4"}],
    },
    "createdAt": "2026-11-21T12:00:00Z",
    "startedAt": "2026-11-21T12:00:09Z",
}
REPLIES: dict[str, Any] = {
    "pod": POD,
    "page": {"pods": [POD, POD], "pagination": {"nextCursor": "MTI=", "hasNextPage": True}},
    "volume": {"id": "vol1", "name": "models", "size": 100, "dataCenterId": "EU-RO-1"},
    "prices": {"gpus": [{"id": "NVIDIA L4", "displayName": "L4", "price": {"secure": 0.43, "community": None}}]},
    "bills": {"records": [{"podId": "xyz123abc", "startTime": "2026-11-21T12:00:00Z", "totalAmount": 0.42}]},
}
PLATFORM_OUTPUT = b"""=== clock_first 0
1000
=== cgroup/memory.max 0
8589934592
=== cgroup/memory.current 0
1048576
=== cgroup/cpu.max 0
400000 100000
=== cgroup/pids.max 0
max
=== disk 0
Filesystem     1024-blocks     Used Available Capacity Mounted on
overlay           52428800 10485760  41943040      20% /
=== inodes 0
Filesystem      Inodes  IUsed   IFree IUse% Mounted on
overlay        6553600 100000 6453600    2% /
=== clock_last 0
1001
"""
GPU_OUTPUT = b"""=== uptime 0
8640.11 1.5
=== xid 0
[ 8000.123456] NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, GPU has fallen off the bus.
[ 8001.000000] NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)
=== gpus 0
0, GPU-5f1b8a60-0000, 00000000:4E:00.0, NVIDIA H100 80GB HBM3, 550.127.05, 81559, 4, Disabled, 0
1, GPU-5f1b8a60-0001, 00000000:5D:00.0, NVIDIA H100 80GB HBM3, 550.127.05, 81559, 4, Disabled, [N/A]
=== apps 0
GPU-5f1b8a60-0000, 4711, 512
=== remapped 0
GPU-5f1b8a60-0000, No, No
=== recovery 2
Field "gpu_recovery_action" is not a valid field to query.
=== cuda 0
CUDA Version                  : 12.4
=== nvlink 0
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f1b8a60-0000)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-5f1b8a60-0001)
\t Link 0: 26.562 GB/s
=== topology 0
\tGPU0\tGPU1
=== fabric 0
0, Completed
1, In Progress
"""
LAST_LOOK = """=== agent
{"pid": 4711, "start_time": "12345", "code_sha256": "00ff"}
=== process
python3 -I .orchestrator/code/agent-00ff.pyz start --run-dir .orchestrator/run/launch-0123456789abcdef
=== done
{"reason": "drained", "status": 0, "at": 1763726400.5}
=== gpus
0, NVIDIA L4, GPU-1, 550.127.05, P0, 4, 23034, 0, 40, 12.5, 0
=== gpus_status
0
=== memory.current
1048576
=== memory.events
low 0
high 0
oom_kill 1
=== disk
Filesystem 1024-blocks Used Available Capacity Mounted on
overlay 52428800 10485760 41943040 20% /
"""
POOLS = """[pools.default]
max_active_gpus = 7

[pools.training]
task_types = ["finetune", "eval"]
gpu_types = ["NVIDIA H100 80GB HBM3"]
data_centers = ["US-KS-2"]
cloud = "COMMUNITY"
gpu_count = 2
gpu_idle_timeout_sec = 60.5

[task_types.finetune]
timeout_s = 7200
max_attempts = 2
"""
ENVIRONMENT = {
    "DATABASE_URL": "postgresql://user:password@db.example:5432/postgres",
    "RUNPOD_API_KEY": "rpa_ABCDEF0123456789",
    "FLEET_ID": "default",
    "PORT": "8080",
    "MIN_ACTIVE_GPUS": "1",
    "MAX_ACTIVE_GPUS": "5",
    "TASKS_PER_GPU_THRESHOLD": "3",
    "GPU_IDLE_TIMEOUT_SEC": "600",
    "ORCHESTRATOR_POLL_SEC": "30",
    "BRINGUP_DEADLINES": "pod_running=300,tcp=60",
    "HEARTBEAT_TIMEOUT_SEC": "60",
    "MAX_WORKER_FAILURE_RATE": "0.8",
    "FAILURE_WINDOW_MINUTES": "5",
    "MAX_HOURLY_COST_USD": "4.2",
    "DAILY_BUDGET_USD": "100",
    "RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090,NVIDIA L4",
    "RUNPOD_DATA_CENTERS": "EU-RO-1, US-KS-2",
    "WORKER_API_URL": "https://orchestrator.example",
    "WORKER_HANDLERS": "travel_segment=travel:segment,x=cmd:./x.sh",
    "WORKER_PYTHON": "python3",
    "DEADMAN_TIMEOUT_SEC": "900",
}
ROW: dict[str, Any] = {
    "id": "gpu-20261121_120000-0a1b2c3d",
    "status": "active",
    "stage": "promoted",
    "pool": "default",
    "pod_id": "xyz123abc",
    "gpu_type": "NVIDIA GeForce RTX 4090",
    "gpu_count": 1,
    "instance_type": "NVIDIA GeForce RTX 4090",
    "created_at": "2026-11-21T11:00:00+00:00",
    "state_since": "2026-11-21T11:02:00+00:00",
    "stage_since": "2026-11-21T11:02:00+00:00",
    "last_heartbeat": "2026-11-21T11:59:50+00:00",
    "deadline_at": "2026-11-21T12:02:00+00:00",
    "next_attempt_at": "2026-11-21T12:00:00+00:00",
    "price_usd_per_hour": 0.69,
    "cost_usd": 0.7,
    "cost_by_kind": {"busy": 0.7},
    "waiting_on": "worker",
    "waiting_for": "tasks",
    "state_reason": "verified",
    "failure_code": "",
    "exit_cause": None,
    "tasks_running": 1,
    "tasks_done": 3,
    "tasks_failed": 0,
    "metadata": {},
    "terminated_at": None,
    "drain_requested_at": None,
    "stop_requested_at": None,
    "own_program": False,
}
