"""slurm.conf of a cluster, as a pure function of its nodes.

The text has placeholders for what differs between pods (@ROOT@, @USER@, @HOSTNAME@); a pod fills them in. So every pod
of a cluster, and every orchestrator, has the same text, and its SHA-256 identifies the configuration.
"""

import hashlib
import zlib

from orchestrator.core.clusters.view import MAX_NODES, Configuration, Node

FIRST_PORT = 20_000
PORT_BLOCKS = 100  # of 100 ports: clusters that share a machine (in tests) rarely share a block
PORTS_PER_CLUSTER = 100
SLURMD_TIMEOUT_S = 30  # until slurmctld calls a silent node down; its running jobs then end with NODE_FAIL
KILL_WAIT_S = 5  # between TERM and KILL, at a job's time limit and at scancel
JOB_MEMORY_S = 3_600  # for which slurmctld still knows an ended job: a client reads its end state from there
MAX_CPUS = 65_000  # of one node; slurmctld does not start with a number that needs more than 16 bits
FANOUT = 2 * MAX_NODES  # slurmctld speaks with every node itself: no message depends on another node

# proctrack/linuxproc and task/none need no cgroups, which a container may not change. With `config_overrides`, the
# configuration's CPUs count, and not those that slurmd sees: a container shows the CPUs of its whole host.
HEAD = """\
ClusterName={cluster}
SlurmctldHost=@HOSTNAME@({controller})
SlurmctldPort={port}
SlurmUser=@USER@
SlurmdUser=@USER@
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=@ROOT@/munge/socket
StateSaveLocation=@ROOT@/state
SlurmdSpoolDir=@ROOT@/spool
SlurmctldPidFile=@ROOT@/run/slurmctld.pid
SlurmdPidFile=@ROOT@/run/slurmd.pid
SlurmctldLogFile=@ROOT@/log/slurmctld.log
SlurmdLogFile=@ROOT@/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SlurmdParameters=config_overrides
DebugFlags=NO_CONF_HASH
GresTypes=gpu
MailProg=/bin/true
Epilog=@ROOT@/etc/epilog
ReturnToService=2
JobRequeue=0
SlurmdTimeout={slurmd_timeout_s}
KillWait={kill_wait_s}
MinJobAge={job_memory_s}
TreeWidth={fanout}
"""
TAIL = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"


def controller_port(cluster: str) -> int:
    """Return the port of the cluster's slurmctld."""
    return FIRST_PORT + zlib.crc32(cluster.encode()) % PORT_BLOCKS * PORTS_PER_CLUSTER


def slurm_port(cluster: str, index: int) -> int:
    """Return the port of the slurmd with this index. Raises ValueError outside 0..63."""
    if not 0 <= index < MAX_NODES:
        raise ValueError(f"a cluster has no node {index}")
    return controller_port(cluster) + 1 + index


def slurm_conf(configuration: Configuration) -> str:
    """Return the text of slurm.conf, with placeholders. Raises ValueError if no node is the controller."""
    controller = next((node for node in configuration.nodes if node.name == configuration.controller), None)
    if controller is None:
        raise ValueError(f"the controller {configuration.controller.text} is not a node of {configuration.cluster}")
    head = HEAD.format(
        cluster=configuration.cluster,
        controller=controller.address.ip,
        port=controller_port(configuration.cluster),
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        kill_wait_s=KILL_WAIT_S,
        job_memory_s=JOB_MEMORY_S,
        fanout=FANOUT,
    )
    nodes = sorted(configuration.nodes, key=lambda node: node.index)
    return head + "".join(_node(configuration, node) for node in nodes) + TAIL


def conf_sha(configuration: Configuration) -> str:
    """Return the SHA-256 (hex) of the configuration's text: equal on every pod that has this configuration."""
    return hashlib.sha256(slurm_conf(configuration).encode()).hexdigest()


def has_gpu_files(node: Node) -> bool:
    """Whether the node has a /dev/nvidia<n> for each of its GPUs. Without them, Slurm only counts the GPUs."""
    return node.gpu_files >= node.gpus


def _node(configuration: Configuration, node: Node) -> str:
    """Return the lines of one node. The comment makes the kind of its gres.conf a part of the SHA-256.

    By the feature, worker/slurm_job.py finds the node on which batch scripts run.
    """
    feature = "controller" if node.name == configuration.controller else "node"
    gpus = f" Gres=gpu:{node.gpus}" if node.gpus else ""
    memory = f" RealMemory={node.memory_mb}" if node.memory_mb else ""
    files = "device files" if has_gpu_files(node) else "counted"
    return (
        f"# {node.name.text}: {node.gpus} GPUs, {files}\n"
        f"NodeName={node.name.text} NodeAddr={node.address.ip} Port={slurm_port(configuration.cluster, node.index)}"
        f" CPUs={min(max(1, node.cpus), MAX_CPUS)}{memory}{gpus} Feature={feature} State=UNKNOWN\n"
    )
