"""One function for each operation on one member of a cluster, over an SSH session.

Every call has a deadline. A call raises Unavailable if its result is unknown (the connection, the deadline, an answer
that is too long or incomplete), and NodeFailed if the member says why it cannot do it. Each call can be repeated.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from orchestrator.clusters import answers, configuration, munge, node_scripts, probe_script, setup_scripts
from orchestrator.clusters.answers import ScriptAnswer
from orchestrator.core.clusters.addresses import CLUSTER_ID, NodeName
from orchestrator.core.clusters.readings import Reading
from orchestrator.core.clusters.view import Configuration, Node
from orchestrator.ports import PortError, Session, Unavailable

PROBE_S = 12.0
CONFIGURE_S = 20.0
START_S = 30.0
UPDATE_S = 10.0
REMOVE_S = 40.0
INSTALL_S = 600.0
SMOKE_S = 20.0
SMOKE_CLIENTS_S = 30.0  # beyond it: for the clients of Slurm that submit the job and read its result
MARGIN_S = 5.0  # beyond a script's own limit, for the connection
TIMED_OUT = {124, 137}  # exit statuses of timeout(1)
PUBLIC_KEY = re.compile(r"[a-z0-9@.-]{1,60} [A-Za-z0-9+/=]{1,2000}")
NOT_PRINTED = re.compile(r"[^A-Za-z0-9 .,_-]")
REASON_CHARS = 100


class NodeFailed(Exception):
    """The member cannot do it. `code` is the script's own word: SLURM_MISSING, NOT_STARTED, and so on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Question:
    """What a probe asks for besides the state of the member's own Slurm."""

    cluster: str
    key: bytes  # the cluster's munge key, which is compared by its fingerprint
    peers: tuple[Node, ...] = ()  # whose slurmd a TCP connection is tried to
    nonce: str | None = None  # the launch whose agent log is read
    api_url: str | None = None  # the agent's API, without a secret
    python: str = "python3"


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """A smoke job. It succeeded if `error` and `waits` are None: then every node answered with its own name."""

    nodes: tuple[str, ...]  # that answered
    seconds: float
    error: str | None
    waits: str | None = None  # it has not begun: why Slurm lets it wait


async def probe(
    session: Session, question: Question, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Reading:
    """Return what the member says now. Never raises for a member: what it does not say is unknown."""
    peers = [
        f"{one.name.text}={one.address.ip}={configuration.slurm_port(question.cluster, one.index)}"
        for one in question.peers
    ]
    arguments = (question.nonce or "", question.python, question.api_url or "", *peers)
    command = node_scripts.command(probe_script.PROBE, PROBE_S, _checked(question.cluster), *arguments)
    asked_at = clock()
    try:
        done = await session.run(command, timeout_s=PROBE_S + MARGIN_S)
    except PortError as error:
        return Reading(reached=False if session.closed else None, error=str(error)[:300])
    return answers.reading(
        ScriptAnswer(done.stdout),
        fingerprint=munge.fingerprint(question.key),
        peers=frozenset(one.name.text for one in question.peers),
        asked_agent=question.nonce is not None,
        asked_at=asked_at,
    )


async def install(session: Session, cluster: str) -> None:
    """Install Debian's packages of Slurm and munge, unless the pod has the programs. No service is started."""
    await _run(session, setup_scripts.INSTALL, INSTALL_S, cluster, wants="installed")


async def configure(session: Session, conf: Configuration, node: Node, key: bytes) -> None:
    """Write the configuration and the key, and run munged with this key. slurmctld and slurmd are not started.

    A slurmctld on a member that is not the controller is stopped, and its state is removed.
    """
    text = configuration.slurm_conf(conf).encode()
    stdin = b"\n".join((base64.b64encode(key), base64.b64encode(text), b""))
    role = "controller" if node.name == conf.controller else "worker"
    files = "files" if configuration.has_gpu_files(node) else "counted"
    arguments = (configuration.conf_sha(conf), role, str(node.gpus), files)
    await _run(session, setup_scripts.CONFIGURE, CONFIGURE_S, conf.cluster, *arguments, stdin=stdin, wants="configured")


async def reconfigure(session: Session, conf: Configuration, node: Node, key: bytes) -> None:
    """Write another configuration, and start the member's running daemons again with it. Jobs on it continue."""
    await configure(session, conf, node, key)
    await _run(session, node_scripts.RESTART, START_S, conf.cluster, node.name.text, wants="restarted")


async def start_controller(session: Session, cluster: str) -> None:
    """Start slurmctld, or start it again, and wait until it answers. It keeps its state, and so its jobs."""
    await _run(session, node_scripts.START_CONTROLLER, START_S, cluster, wants="started")


async def start_node(session: Session, cluster: str, node: NodeName) -> None:
    """Start slurmd, or start it again. The node is resumed if Slurm put it down, but not if it was drained."""
    await _run(session, node_scripts.START_NODE, START_S, cluster, node.text, wants="started")


async def smoke(session: Session, conf: Configuration, nodes: int, *, clock: Callable[[], float]) -> SmokeResult:
    """Run one job over this number of nodes, from the controller. Each of them answers with its own name.

    If all nodes are busy, the job stays in Slurm's queue. The next call waits for the same job.
    """
    began = clock()
    words = (str(nodes), f"{SMOKE_S:g}", conf.controller.text)
    answer, _ = await _ask(session, node_scripts.SMOKE, SMOKE_S + SMOKE_CLIENTS_S, conf.cluster, *words)
    if (waits := answer.get("waits")) is not None:
        return SmokeResult((), round(clock() - began, 3), None, waits)
    if answer.get("srun") is None:
        raise Unavailable("the smoke job's answer is not complete")
    names = tuple(sorted(set(answer.every("node")) & {node.name.text for node in conf.nodes}))
    error = answer.get("error")
    if error is None and (answer.get("srun") != "0" or len(names) != nodes):
        error = f"{len(names)} of {nodes} nodes answered"
    return SmokeResult(names, round(clock() - began, 3), error)


async def drain(session: Session, cluster: str, node: NodeName, why: str) -> None:
    """Let a node take no new job, from a member on which slurmctld answers. Its running jobs go on."""
    reason = NOT_PRINTED.sub(" ", why)[:REASON_CHARS] or "on request"
    await _run(session, node_scripts.DRAIN_NODE, UPDATE_S, cluster, node.text, reason, wants="drained")


async def remove(session: Session, cluster: str) -> None:
    """End the cluster's daemons and its jobs on this member, and nothing else. Remove the cluster's files."""
    await _run(session, node_scripts.REMOVE, REMOVE_S, cluster, wants="removed")


async def set_authorized_key(session: Session, cluster: str, public_key: str) -> None:
    """Make `public_key` ("type base64") the one managed line of authorized_keys. Other lines stay."""
    key = _public_key(public_key)
    await _run(session, node_scripts.AUTHORIZED_KEY, UPDATE_S, cluster, key, wants="key")


async def _run(
    session: Session, script: str, limit_s: float, cluster: str, *arguments: str, stdin: bytes = b"", wants: str
) -> None:
    """Run a script whose success is the line `<wants>=…`."""
    answer, status = await _ask(session, script, limit_s, cluster, *arguments, stdin=stdin)
    error = answer.get("error")
    if error is not None and status == node_scripts.FAILED:
        code, _, text = error.partition(" ")
        raise NodeFailed(code, text)
    if status != 0 or answer.get(wants) is None:
        raise Unavailable(f"the script ended with status {status} and without {wants!r}: its result is unknown")


async def _ask(
    session: Session, script: str, limit_s: float, cluster: str, *arguments: str, stdin: bytes = b""
) -> tuple[ScriptAnswer, int]:
    command = node_scripts.command(script, limit_s, _checked(cluster), *arguments)
    done = await session.run(command, stdin=stdin, timeout_s=limit_s + MARGIN_S)
    if done.exit_status is None or done.exit_status in TIMED_OUT:
        raise Unavailable(f"no result within {limit_s:g} s, or the connection was lost")
    if len(done.stdout) > answers.MOST_BYTES:
        raise Unavailable(f"more than {answers.MOST_BYTES} bytes of output")
    return ScriptAnswer(done.stdout), done.exit_status


def _checked(cluster: str) -> str:
    """Return a cluster's id, which is also the name of its directory on the pod. Raises ValueError."""
    if not CLUSTER_ID.fullmatch(cluster):
        raise ValueError(f"{cluster!r} is no id of a cluster")
    return cluster


def _public_key(key: str) -> str:
    if not PUBLIC_KEY.fullmatch(key):
        raise ValueError("the managed key is not 'type base64'")
    return key
