"""The knowledge base: 43 known failures of rented GPUs (U1 to U43), each with its cause and a remedy.

`row(22)` returns a row by its number, `find(text)` the rows for a question or an error message, and `in_log(text)`
those for the end of a log. Texts are compared as plain substrings, and bounded single lines with patterns, so a search
takes linear time whatever the text is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.findings import GUARDS

MAX_TEXT_CHARS = 1_000  # words of a question
MAX_LOG_CHARS = 256 * 1024
SHORTEST = 4  # characters of a question
FOUND_MOST = 3
MAX_LINE_CHARS = 1_000  # of a line that is compared as a whole
EXACT = 10_000  # the score of such a line: better than any phrase


@dataclass(frozen=True, slots=True)
class Gotcha:
    """One known failure."""

    u: int
    title: str
    cause: str
    fix: str
    printed: tuple[str, ...]  # texts that programs print, in small letters: logs and questions are compared with them
    asked: tuple[str, ...] = ()  # other words for it: only questions are compared with them
    whole: tuple[str, ...] = ()  # whole lines that programs print, as regular expressions

    @property
    def id(self) -> str:
        """`U22`."""
        return f"U{self.u}"

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes of agents' findings that belong to it."""
        return tuple(code for code, guard in GUARDS.items() if guard.u == self.u)


def row(u: int) -> Gotcha | None:
    """Return the row with this number."""
    return CATALOGUE[u - 1] if 1 <= u <= len(CATALOGUE) else None


def find(text: str) -> tuple[Gotcha, ...]:
    """Return the rows that match a phrase or an error message, the best match first; at most FOUND_MOST."""
    asked = _plain(text[:MAX_TEXT_CHARS])
    if len(asked) < SHORTEST:
        return ()
    scores = ((max(_scores(asked, one)), one) for one in CATALOGUE)
    found = sorted((pair for pair in scores if pair[0] > 0), key=lambda pair: (-pair[0], pair[1].u))
    return tuple(one for _, one in found[:FOUND_MOST])


def in_log(text: str) -> tuple[tuple[Gotcha, str], ...]:
    """Return the rows whose phrases occur in a log, each with the last such line; the last line first."""
    found: dict[int, str] = {}
    for line in reversed(text[-MAX_LOG_CHARS:].splitlines()):
        plain = _plain(line)
        for one in CATALOGUE:
            if one.u not in found and (any(phrase in plain for phrase in one.printed) or _is_line_of(plain, one)):
                found[one.u] = line.strip()
        if len(found) >= FOUND_MOST:
            break
    return tuple((CATALOGUE[u - 1], line) for u, line in list(found.items())[:FOUND_MOST])


def _scores(asked: str, one: Gotcha) -> Iterator[int]:
    """Return how well a question matches each phrase of a row: the length of the shared text; 0 is no match."""
    yield EXACT if _is_line_of(asked, one) else 0
    for phrase in (*one.printed, *one.asked, one.title.lower()):
        yield len(phrase) if phrase in asked else len(asked) if asked in phrase else 0


def _is_line_of(plain: str, one: Gotcha) -> bool:
    return any(re.fullmatch(pattern, plain[:MAX_LINE_CHARS]) for pattern in one.whole)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


# fmt: off
CATALOGUE = (
    Gotcha(1, "SSH ends when a process is killed",
           "The killed process held the SSH session, so the client lost its connection. It may have run all the same.",
           "Connect again and look at the state of the process; that result decides.",
           ("connection closed by remote host",), ("exit status 255", "connection reset by peer")),
    Gotcha(2, "Code was replaced while it ran",
           "A shell reads its script while it runs. With a new text it continues in the wrong place.",
           "Give new code a new name. Agents are launched from bundles that are named by their content.",
           (), ("restarts from epoch 1", "script overwritten", "edited while running")),
    Gotcha(3, "A process vanished without a message",
           "Four usual causes: the machine was restarted, the kernel killed it for memory, its session ended, or "
           "somebody killed it.",
           "Read the exit class in `explain <worker>`. Change the task only if memory was the cause.",
           (), ("process vanished", "no traceback", "the log stops")),
    Gotcha(4, "A stop and a start in one command",
           "The stop ends the session that would have run the start.",
           "Send the start in a second command. Match a process by pid and start time, not by its name.",
           (), ("pkill and restart", "was not started again")),
    Gotcha(5, "The handler runs in the wrong Python environment",
           "The packages are in an environment that the launch command does not activate.",
           "Activate it in WORKER_SETUP_COMMAND, or set WORKER_PYTHON to its interpreter.",
           ("modulenotfounderror: no module named",), ("wrong environment", "conda activate")),
    Gotcha(6, "The disk is full",
           "A checkpoint is written under a temporary name first, so both copies need space at the same time.",
           "Keep twice the size of a checkpoint free: raise RUNPOD_CONTAINER_DISK_GB, or delete old checkpoints and "
           "*.tmp files in the handler.",
           ("iostream error", "unexpected pos", "no space left on device", "pytorchstreamwriter failed",
            "disk quota exceeded"), ("disk full",)),
    Gotcha(7, "The disk has no inodes left",
           "Many small files use up the inodes while bytes are free. `df -i` shows it; `df -h` does not.",
           "Pack small files into a tar file. Delete caches that links point to, such as ~/.cache/huggingface.",
           ("no space left on device",), ("inodes", "df -i")),
    Gotcha(8, "Data is read from a slow volume",
           "A network volume or a hard disk reads far slower than the local NVMe, so the GPU waits.",
           "Copy the data to the pod's local disk first, and write results back at the end.",
           (), ("slow volume", "network volume", "stage to local")),
    Gotcha(9, "The pod's memory limit was exceeded",
           "Each loader process has its own copy of a large object. Together they exceed the limit of the pod, and the "
           "kernel kills one of them.",
           "Start fewer loader processes, or share one copy (memory map). RUNPOD_MIN_MEMORY_GB asks for more memory.",
           ("killed by signal: killed", "oom-kill", "out of memory: killed process", "dataloader worker (pid"),
           ("exit status 137", "oom_kill"),
           (r"(?:\d+ )?killed", r"[\w./-]+: (?:line )?\d+: (?:\d+ )?killed(?: .*)?")),
    Gotcha(10, "The GPU's memory is full",
           "The model, other programs on the same GPU and fragmentation need more than the card has. The pod's own "
           "memory is another one.",
           "Lower the batch size, or take a larger GPU. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces "
           "fragmentation.",
           ("cuda out of memory", "cuda error: out of memory", "cublas_status_alloc_failed",
            "cuda_error_out_of_memory"), ("vram",)),
    Gotcha(11, "GPU memory is held by a process that nvidia-smi does not show",
           "A process that crashed, or one of another container, still holds memory of the GPU.",
           "`fuser -v /dev/nvidia*` names the holders on the pod. If none is ours, replace the pod.",
           (), ("zombie process", "empty gpu is out of memory")),
    Gotcha(12, "A transfer broke off",
           "One connection carried the whole transfer, and the network reset it.",
           "Transfer in parts and resume. Outputs through the agent do that; a handler's own downloads must do it too.",
           ("connection reset by peer", "incompleteread", "connection broken", "read from remote host"),
           ("download interrupted",)),
    Gotcha(13, "The destination directory does not exist",
           "Something else was expected to create it, and ran later or not at all.",
           "Create the directory in the same step as the transfer, and in each repetition.",
           ("dest open",), ("missing directory", "scp failure")),
    Gotcha(14, "Traffic between regions costs money",
           "Cloud providers bill bytes that leave a region. Data that is read each day can cost more than the GPU.",
           "Choose RUNPOD_DATA_CENTERS near the bucket, and keep one copy on a volume.",
           (), ("egress", "cost of traffic")),
    Gotcha(15, "Data is sent without compression",
           "Checkpoints, JSON and logs are often twice as large as needed.",
           "Compress before the upload. Logs are compressed already.",
           (), ("compression", "uploads are slow")),
    Gotcha(16, "Old watchers are still running",
           "Each restart started a new watcher and left the old one, which waits for a text that never comes.",
           "Stop the old watcher first. The orchestrator has one shipper for each worker.",
           (), ("stale watcher", "waiters pile up")),
    Gotcha(17, "A remote command never returns",
           "It waits for input, most often because of an unquoted `|` in a pattern, or its connection died silently.",
           "Quote the arguments, close stdin, and set a time limit for connection and command.",
           (), ("never returns", "grep hangs")),
    Gotcha(18, "A run ends with the session that started it",
           "The job was a child of the session, or nobody was told of its end.",
           "Let the job detach and write a marker of its end. The agent does both.",
           (), ("done marker", "unattended run", "nohup")),
    Gotcha(19, "Something deleted is still listed",
           "The provider deletes later than it answers, and lists are older than deletes.",
           "Look again some minutes later. Delete again if it stays; do not use it again.",
           (), ("still listed", "deletion lags")),
    Gotcha(20, "Logs are lost with the machine",
           "The local disk ends with the pod, and the last lines had not been sent.",
           "Send logs while the task runs and once more before the delete. The shipper does both.",
           (), ("logs lost", "curves are gone")),
    Gotcha(21, "The GPU is busy, but the work is slow",
           "Utilisation only says that a kernel ran. Many tiny kernels show 100 % as well.",
           "Compare with the SM clock and the power. If they are low, load data faster or use larger batches.",
           (), ("gpu-util", "utilisation 100")),
    Gotcha(22, "The GPU has failed",
           "The driver reports hardware faults as Xid numbers: 48 is a memory fault, 79 a GPU that fell off the bus.",
           "`explain XID_<n>` says what a number means: 13, 31, 43, 45 and 69 are mostly errors of the program. After "
           "the others replace the pod; no program can repair it.",
           ("nvrm: xid", "unable to determine the device handle", "fallen off the bus", "gpu is lost",
            "uncorrectable ecc error", "double bit ecc"), ("xid",)),
    Gotcha(23, "The GPU is too hot or short of power",
           "It lowers its clock to protect itself, without any error.",
           "Replace the pod: a tenant cannot improve its cooling. A power cap alone is no fault.",
           ("thermal slowdown", "hw slowdown"), ("throttling", "throttled", "slower than yesterday")),
    Gotcha(24, "The GPU waits for the data loader",
           "Too few loader processes, no prefetch, or copies between host and GPU in the middle of a step.",
           "Use more loader processes (as far as memory allows, U9), persistent workers, pinned memory and prefetch.",
           (), ("gpu starved", "data loader", "num_workers")),
    Gotcha(25, "Very many small files",
           "Opening a file costs more than reading it, on network volumes and in S3 alike.",
           "Pack them into tar files of some hundred MB. Folders with more than 10,000 files are packed by the agent.",
           (), ("small files", "webdataset")),
    Gotcha(26, "A script has Windows line ends",
           "bash takes the carriage return at the end of each line for a part of the last word.",
           "Write `*.sh text eol=lf` into .gitattributes. `sed -i 's/\\r$//'` repairs a file.",
           ("$'\\r': command not found", "\\r: no such file or directory", "set: -: invalid option",
            "\\r': no such file or directory", "\\r’: no such file or directory", '\\r": no such file or directory',
            "^m: bad interpreter", "near unexpected token `$'"), ("crlf",)),
    Gotcha(27, "A dotted override has no parent",
           "The configuration has null where the override expects a mapping.",
           "Put the variant into a file of its own, which can be reviewed and used again.",
           ("override path",), ("is not a mapping", "dotted override")),
    Gotcha(28, "CUDA, the driver and PyTorch do not match",
           "The driver belongs to the host and limits the CUDA version. PyTorch must be built for that version and for "
           "the GPU's architecture.",
           "Keep the PyTorch of the image: leave torch out of the packages that the set-up installs. Or choose an "
           "image for an older CUDA.",
           ("no kernel image is available", "mismatches the version", "cuda driver version is insufficient",
            "nvidia driver on your system is too old", "forward compatibility was attempted"), ("cuda mismatch",)),
    Gotcha(29, "The same requirements gave other packages",
           "Only the top level was pinned; what it depends on has changed.",
           "Install from a lock file (uv, pip-tools, conda-lock).",
           ("dependency resolver does not currently take into account",), ("lock file", "dependency drift")),
    Gotcha(30, "The image changed under its tag",
           "A tag can point to other layers tomorrow.",
           "Name the image by digest: image@sha256:…",
           (), ("image tag", "digest")),
    Gotcha(31, "The program runs without a GPU",
           "The container has no GPU or no driver, and the program falls back to the CPU.",
           "Replace the pod. Let the handler fail if torch.cuda.is_available() is false.",
           ("torch not compiled with cuda enabled", "no cuda gpus are available", "found no nvidia driver",
            "nvidia-smi: command not found", "could not select device driver", "nvidia-smi has failed because"),
           ("cpu-only", "no gpu")),
    Gotcha(32, "A global setting replaced a task's own",
           "One value for all tasks overrides the value that a type of task needs.",
           "Give the value to the type or the task; the more specific one wins.",
           (), ("default epochs", "global setting")),
    Gotcha(33, "A copy was reported, but the data is not there",
           "The message of success did not depend on the result of the copy.",
           "Compare size and checksum after the copy, and delete the original only then. The agent does so.",
           (), ("synced but missing", "silent sync")),
    Gotcha(34, "A secret was written into a command",
           "Command lines are kept in histories, process lists and logs.",
           "Send it through stdin into a file with mode 0600. Name variables for handlers in WORKER_ENV.",
           (), ("leaked key", "secret in a command")),
    Gotcha(35, "The experiment tracker has no key",
           "Wrappers ask the tracker's server even in offline mode, and switch themselves off without a key.",
           "Name the key's variable in WORKER_ENV, and let the task fail if the tracker's first line does not come.",
           ("no api key configured", "disabled wandb due to", "api_key not configured"), ("wandb offline",)),
    Gotcha(36, "Equal runs give slightly different results",
           "cuDNN chooses the fastest kernel by measuring, and some kernels add numbers in any order.",
           "torch.backends.cudnn.benchmark = False and torch.use_deterministic_algorithms(True), with fixed seeds. It "
           "is slower.",
           ("does not have a deterministic implementation", "cublas_workspace_config"),
           ("cudnn.benchmark", "nondeterministic", "same seed")),
    Gotcha(37, "A figure is too large",
           "matplotlib draws at most 65,535 pixels for each axis; one row for each sample exceeds that.",
           "Limit the number of samples in a figure, or write several figures.",
           ("must be less than 2^16",), ("matplotlib", "image size of")),
    Gotcha(38, "The GPU is idle while the task makes progress",
           "The task prepares its data on the CPU, often in a single process.",
           "Use loader processes, or move the transform to the GPU. Such a task is never ended because of it.",
           (), ("gpu at 0", "0% utilisation", "cpu-bound", "cpu bound")),
    Gotcha(39, "The live view is empty, but the task runs",
           "The view reads another directory, its process has ended, or its port is not open.",
           "Compare its directory with the one that the program writes. Keep what must last in S3.",
           ("no dashboards are active for the current data set",), ("tensorboard", "panel is empty")),
    Gotcha(40, "Too many threads for the pod's CPUs",
           "Libraries start a thread for each core of the host, although the pod has a part of them.",
           "OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS = the pod's vCPUs. The launcher sets them; "
           "WORKER_ENV overrides them.",
           ("setting omp_num_threads environment variable", "blas_thread_init: pthread_create failed",
            "libgomp: thread creation failed"), ("omp_num_threads", "too many threads")),
    Gotcha(41, "The host is loaded, but not by this pod",
           "uptime, top and free describe the whole host, with its other tenants.",
           "Read the pod's cgroup: memory.current, oom_kill in memory.events, cpu.pressure. Change nothing if they are "
           "low.",
           (), ("load average", "noisy neighbour", "noisy neighbor")),
    Gotcha(42, "The pod runs other code than expected",
           "The new code was never sent, or sent to another place.",
           "`verify <worker>` compares the hash of the code. New workers get the present one.",
           (), ("not deployed", "old code", "stale code")),
    Gotcha(43, "The log is silent, but the task runs",
           "Without a terminal, output is kept in a buffer of some KB.",
           "PYTHONUNBUFFERED=1 or flush=True; `stdbuf -oL` for other programs. Silence alone ends no task.",
           (), ("log looks frozen", "block-buffered", "no output")),
)
# fmt: on
