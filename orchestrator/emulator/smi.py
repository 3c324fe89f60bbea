"""The pods' nvidia-smi and date: shell scripts that answer from a file in the pod's directory.

A shell script, since fifty pods may be asked at one moment: it costs 2 ms where an interpreter would cost 20.
"""

from pathlib import Path

from orchestrator.emulator.catalog import GPU_TYPES
from orchestrator.emulator.world import PodRecord

FACTS_FILE = "gpus.csv"  # beside the pod's HOME: a line of field names, a line of units, then one line per GPU
DRIVER, OLD_DRIVER = "570.124.06", "470.57.02"

NVIDIA_SMI = r"""#!/bin/sh
# usage: nvidia-smi [-L | --query-gpu=FIELDS --format=csv[,noheader][,nounits]]
facts="$EMULATED_POD/gpus.csv"
query= format= list=
while [ $# -gt 0 ]; do
  case "$1" in
    --query-gpu=*) query="${1#*=}" ;;
    --query-compute-apps=*|--query-remapped-rows=*|--query-retired-pages=*) exit 0 ;;
    --format=*) format="${1#*=}" ;;
    -L|--list-gpus) list=1 ;;
    -i|--id) shift ;;
    *) ;;
  esac
  shift
done
if [ ! -r "$facts" ] || [ "$(wc -l < "$facts")" -lt 3 ]; then echo "No devices were found"; exit 6; fi
[ -n "$query" ] || { [ -n "$list" ] && query=list || query=index,name,driver_version,memory.used,memory.total; }
exec awk -F, -v query="$query" -v format="$format" '
  NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
  NR == 2 {
    for (i = 1; i <= NF; i++) unit[i] = $i
    if (query == "list") next
    n = split(query, want, /, */); header = ""
    for (i = 1; i <= n; i++) {
      if (!(want[i] in column)) { printf "Field \"%s\" is not a valid field to query.\n\n", want[i]; exit 2 }
      u = unit[column[want[i]]]; header = header (i > 1 ? ", " : "") want[i] (u != "" ? " [" u "]" : "")
    }
    if (format !~ /noheader/) print header
    next
  }
  query == "list" { printf "GPU %s: %s (UUID: %s)\n", $column["index"], $column["name"], $column["uuid"]; next }
  {
    line = ""
    for (i = 1; i <= n; i++) {
      c = column[want[i]]; u = unit[c]
      line = line (i > 1 ? ", " : "") $c ((u != "" && format !~ /nounits/ && $c !~ /^\[/) ? " " u : "")
    }
    print line
  }
' "$facts"
"""

DATE = r"""#!/bin/sh
# A clock that is off by EMULATED_CLOCK_SKEW_S seconds.
[ -n "$EMULATED_CLOCK_SKEW_S" ] || exec /bin/date "$@"
if /bin/date -d @0 >/dev/null 2>&1; then exec /bin/date -d "$EMULATED_CLOCK_SKEW_S seconds" "$@"; fi
exec /bin/date -v"+${EMULATED_CLOCK_SKEW_S}S" "$@"
"""


def write_programs(bin_dir: Path, python: str) -> None:
    """Put into `bin_dir` what an image would have: nvidia-smi, date, and python3 (`python`: the interpreter)."""
    bin_dir.mkdir(parents=True, exist_ok=True)
    interpreter = f'#!/bin/sh\nexec "{python}" "$@"\n'
    for name, text in {"nvidia-smi": NVIDIA_SMI, "date": DATE, "python3": interpreter, "python": interpreter}.items():
        program = bin_dir / name
        program.write_text(text)
        program.chmod(0o755)


def write_facts(pod: PodRecord) -> None:
    """Write what nvidia-smi will say on this pod."""
    gpu = GPU_TYPES[pod.gpu_type]
    driver = OLD_DRIVER if pod.fault("old_driver") else DRIVER
    columns: dict[str, tuple[str, str]] = {  # field -> (unit, value; "#" becomes the index)
        "index": ("", "#"),
        "count": ("", str(pod.gpu_count)),
        "name": ("", gpu.id),
        "gpu_name": ("", gpu.id),
        "uuid": ("", f"GPU-{pod.machine_id}-0000-0000-0000-00000000000#"),
        "gpu_uuid": ("", f"GPU-{pod.machine_id}-0000-0000-0000-00000000000#"),
        "pci.bus_id": ("", "00000000:0#:00.0"),
        "driver_version": ("", driver),
        "compute_cap": ("", gpu.compute_capability),
        "pstate": ("", "P8"),
        "memory.total": ("MiB", str(gpu.memory_mib)),
        "memory.used": ("MiB", "2"),
        "memory.free": ("MiB", str(gpu.memory_mib - 2)),
        "utilization.gpu": ("%", "0"),
        "utilization.memory": ("%", "0"),
        "temperature.gpu": ("", "31"),
        "power.draw": ("W", "22.50"),
        "power.limit": ("W", f"{gpu.power_limit_w}.00"),
        "clocks.sm": ("MHz", "210"),
        "clocks.max.sm": ("MHz", "3105"),
        "ecc.mode.current": ("", "[N/A]"),
        "ecc.errors.uncorrected.volatile.total": ("", "[N/A]"),
        "ecc.errors.uncorrected.aggregate.total": ("", "[N/A]"),
        "remapped_rows.pending": ("", "[N/A]"),
        "remapped_rows.failure": ("", "[N/A]"),
        "mig.mode.current": ("", "[N/A]"),
        "persistence_mode": ("", "Enabled"),
    }
    count = 0 if pod.fault("zero_gpus") else pod.gpu_count
    lines = [",".join(columns), ",".join(unit for unit, _ in columns.values())]
    lines += [",".join(value.replace("#", str(index)) for _, value in columns.values()) for index in range(count)]
    (pod.home.parent / FACTS_FILE).write_text("\n".join(lines) + "\n")
