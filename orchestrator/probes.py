"""The shell scripts that ask a pod about itself. They arrive over stdin and need sh alone: no interpreter, no file.

Each tool's answer is a section, `=== <name> <exit status>` and what it printed (core/inspection.py reads them). Each
tool runs under timeout(1), so that one that hangs ends as a fact with a name. One that cannot even be killed (a driver
in uninterruptible sleep) ends with its stage: that is why GPUs are not asked in the same command as the disk.
"""

import shlex

COMMAND = "sh -s -- {}"
DF_TIMEOUT_S, DMESG_TIMEOUT_S = 5, 5

_SAY = r"""
limited() {
  if command -v timeout >/dev/null 2>&1; then timeout -k 1 "$@"; else shift; "$@"; fi
}
say() {
  name=$1; shift
  said=$("$@" 2>&1 </dev/null)
  printf '=== %s %s\n%s\n' "$name" "$?" "$said"
}
"""

# $1: a directory in place of /, for tests; nothing on a pod. The cgroup files are read without starting a program.
PLATFORM = (
    _SAY
    + f"""
say clock_first date +%s
say disk limited {DF_TIMEOUT_S} df -Pk "${{HOME:-.}}"
say inodes limited {DF_TIMEOUT_S} df -Pi "${{HOME:-.}}"
for file in memory.max memory.current cpu.max pids.max memory/memory.limit_in_bytes memory/memory.usage_in_bytes \\
    cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us pids/pids.max; do
  if {{ read -r line <"$1/sys/fs/cgroup/$file"; }} 2>/dev/null
  then printf '=== cgroup/%s 0\\n%s\\n' "$file" "$line"; fi
done
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
    "cuda": "-q -d COMPUTE",  # its head tells the driver's CUDA version
}
FABRIC_QUERIES = {
    "nvlink": "nvlink --status",
    "topology": "topo -m",
    "fabric": "--query-gpu=index,fabric.state --format=csv,noheader",
}
# $1: seconds for all of nvidia-smi together, so that after a call that hung no other is made; $2: GPUs rented.
GPUS = (
    _SAY
    + """
end=$(( $(date +%s) + $1 ))
smi() {
  left=$(( end - $(date +%s) ))
  if [ "$left" -gt 0 ]; then name=$1; shift; say "$name" limited "$left" nvidia-smi "$@"
  else printf '=== %s 124\\nnot asked: no time is left\\n' "$1"; fi
}
"""
    + "".join(f"smi {name} {arguments}\n" for name, arguments in QUERIES.items())
    + 'if [ "$2" -gt 1 ]; then\n'
    + "".join(f"smi {name} {arguments}\n" for name, arguments in FABRIC_QUERIES.items())
    + f"""fi
kernel() {{
  said=$(limited {DMESG_TIMEOUT_S} dmesg </dev/null) || return
  printf '%s\\n' "$said" | grep 'NVRM: Xid' | tail -n 100
}}
if {{ read -r line </proc/uptime; }} 2>/dev/null; then printf '=== uptime 0\\n%s\\n' "$line"; fi
said=$(kernel 2>&1)
printf '=== xid %s\\n%s\\n' "$?" "$said"
"""
)


def platform_command(root: str = "") -> str:
    """The command that runs PLATFORM, given on its stdin."""
    return COMMAND.format(shlex.quote(root))


def gpus_command(limit_s: float, count: int) -> str:
    """The command that runs GPUS, given on its stdin."""
    return COMMAND.format(f"{max(1, int(limit_s))} {count}")
