"""The shell scripts of the probes. They arrive over stdin and need only sh: no interpreter, no file.

Each tool's answer is a section: `=== <name> <exit status>`, then its output (core/machine_checks.py parses it). The
script runs under timeout(1). If a tool hangs, its section is the first missing one. A tool that cannot be killed (a
driver in uninterruptible sleep) fails the whole stage, so GPUs and the disk have separate commands.
"""

import shlex

_SAY = r"""
say() {
  name=$1; shift
  said=$("$@" 2>&1 </dev/null)
  printf '=== %s %s\n%s\n' "$name" "$?" "$said"
}
"""

# $1: a directory in place of /, only for tests. The cgroup files are read without starting a program.
PLATFORM = (
    _SAY
    + """
say clock_first date +%s
for file in memory.max memory.current cpu.max pids.max memory/memory.limit_in_bytes memory/memory.usage_in_bytes \\
    cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us pids/pids.max; do
  if { read -r line <"$1/sys/fs/cgroup/$file"; } 2>/dev/null
  then printf '=== cgroup/%s 0\\n%s\\n' "$file" "$line"; fi
done
say disk df -Pk "${HOME:-.}"
say inodes df -Pi "${HOME:-.}"
say clock_last date +%s
"""
)

GPU_FIELDS = (
    "index,uuid,pci.bus_id,name,driver_version,memory.total,memory.used,mig.mode.current,"
    "ecc.errors.uncorrected.volatile.total"
)
QUERIES = {  # section -> nvidia-smi's arguments
    "gpus": f"--query-gpu={GPU_FIELDS} --format=csv,noheader,nounits",
    "apps": "--query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits",
    "remapped": "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure --format=csv,noheader",
    "recovery": "--query-gpu=index,gpu_recovery_action --format=csv,noheader",  # drivers before 565 do not know it
    "cuda": "-q -d COMPUTE",  # its head has the driver's CUDA version
}
FABRIC_QUERIES = {
    "nvlink": "nvlink --status",
    "topology": "topo -m",
    "fabric": "--query-gpu=index,fabric.state,fabric.status --format=csv,noheader",
}
# $1: the number of rented GPUs.
GPUS = (
    _SAY
    + """
if { read -r line </proc/uptime; } 2>/dev/null; then printf '=== uptime 0\\n%s\\n' "$line"; fi
kernel() {
  said=$(dmesg) || { printf '%s\\n' "$said"; return 1; }
  printf '%s\\n' "$said" | grep 'NVRM: Xid' | tail -n 100
}
say xid kernel
"""
    + "".join(f"say {name} nvidia-smi {arguments}\n" for name, arguments in QUERIES.items())
    + 'if [ "$1" -gt 1 ]; then\n'
    + "".join(f"say {name} nvidia-smi {arguments}\n" for name, arguments in FABRIC_QUERIES.items())
    + "fi\n"
)


def platform_command(limit_s: float, root: str = "") -> str:
    """Return the command that runs PLATFORM from its stdin."""
    return limited_command(limit_s, root)


def gpus_command(limit_s: float, count: int) -> str:
    """Return the command that runs GPUS from its stdin."""
    return limited_command(limit_s, str(count))


def limited_command(limit_s: float, argument: str) -> str:
    """Return the command that runs a script from its stdin, for `limit_s` at most."""
    program = f"sh -s -- {shlex.quote(argument)}"
    limited = f"timeout -k 1 {max(1, int(limit_s))} {program}"
    return f"if command -v timeout >/dev/null 2>&1; then exec {limited}; else exec {program}; fi"
