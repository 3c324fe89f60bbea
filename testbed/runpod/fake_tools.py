"""A pod's tools: nvidia-smi, df, date and dmesg, as shell scripts that answer from the pod's files.

They are shell scripts because fifty pods may be checked at once: a script takes 2 ms, an interpreter 20 ms. nvidia-smi
knows the queries of orchestrator/pods/probe_scripts.py, and those that a person would type first.
"""

from collections.abc import Mapping
from pathlib import Path

from testbed.runpod.machine_faults import facts

NVIDIA_SMI = r"""#!/bin/sh
# usage: nvidia-smi [-L | -q … | nvlink … | topo … | --query-gpu=FIELDS --format=csv[,noheader][,nounits] | --query-…]
read -r mode 2>/dev/null <"$EMULATED_POD/smi"
case "$mode" in
  hang) exec sleep 3600 ;;
  flood) while :; do printf '%1000000s\n' x; done ;;
  absent) echo "nvidia-smi: not found"; exit 127 ;;
  lost) echo "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error"; exit 255 ;;
esac
facts="$EMULATED_POD/gpus.csv"
query= format= list=
show() { while IFS= read -r line; do printf '%s\n' "$line"; done <"$EMULATED_POD/$1"; exit 0; }
case "$1" in
  nvlink|topo) show "$1" ;;
  -q) show details ;;
esac
while [ $# -gt 0 ]; do
  case "$1" in
    --query-gpu=*) query="${1#*=}" ;;
    --query-compute-apps=*) show apps ;;
    --query-remapped-rows=*) show remapped ;;
    --query-retired-pages=*) exit 0 ;;
    --format=*) format="${1#*=}" ;;
    -L|--list-gpus) list=1 ;;
    -i|--id) shift ;;
    *) ;;
  esac
  shift
done
[ -n "$query" ] || { [ -n "$list" ] && query=list || query=index,name,driver_version,memory.used,memory.total; }
exec awk -F, -v query="$query" -v format="$format" '
  NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
  NR == 2 {
    for (i = 1; i <= NF; i++) unit[i] = $i
    if (query == "list") next
    n = split(query, want, /, */); header = ""
    for (i = 1; i <= n; i++) {
      if (!(want[i] in column)) { printf "Field \"%s\" is not a valid field to query.\n\n", want[i]; bad = 2; exit 2 }
      u = unit[column[want[i]]]; header = header (i > 1 ? ", " : "") want[i] (u != "" ? " [" u "]" : "")
    }
    next
  }
  NR == 3 && query != "list" && format !~ /noheader/ { print header }
  query == "list" { printf "GPU %s: %s (UUID: %s)\n", $column["index"], $column["name"], $column["uuid"]; next }
  {
    line = ""
    for (i = 1; i <= n; i++) {
      c = column[want[i]]; u = unit[c]
      line = line (i > 1 ? ", " : "") $c ((u != "" && format !~ /nounits/ && $c !~ /^\[/) ? " " u : "")
    }
    print line
  }
  END { if (bad) exit bad; if (NR < 3) { print "No devices were found"; exit 6 } }
' "$facts"
"""

DATE = r"""#!/bin/sh
# A clock that is off by EMULATED_CLOCK_SKEW_S seconds, or by what the pod's clock says (daemons.py).
read -r clock 2>/dev/null <"$EMULATED_POD/clock" && EMULATED_CLOCK_SKEW_S="${clock%s}"
EMULATED_CLOCK_SKEW_S="${EMULATED_CLOCK_SKEW_S#+}"
[ -n "$EMULATED_CLOCK_SKEW_S" ] || exec /bin/date "$@"
if /bin/date -d @0 >/dev/null 2>&1; then exec /bin/date -d "$EMULATED_CLOCK_SKEW_S seconds" "$@"; fi
exec /bin/date -v"+${EMULATED_CLOCK_SKEW_S}S" "$@"
"""

DF = r"""#!/bin/sh
# The pod's one disk: with an i among the options its inodes, else its blocks of 1 KiB.
file=blocks
for word in "$@"; do case "$word" in --*) ;; -*i*) file=inodes ;; esac; done
while IFS= read -r line; do printf '%s\n' "$line"; done <"$EMULATED_POD/$file"
"""

DMESG = r"""#!/bin/sh
# Most hosts do not show their kernel's log to a container; one whose log has something to tell does.
[ -s "$EMULATED_POD/dmesg" ] && exec cat "$EMULATED_POD/dmesg"
echo "dmesg: read kernel buffer failed: Operation not permitted" >&2
exit 1
"""

SSHD = r"""#!/bin/sh
# What the pod's own sshd is configured with, as `sshd -T` prints it: the host keys.
for file in "$EMULATED_POD"/ssh/*.pub; do echo "hostkey ${file%.pub}"; done
"""

# What is run before the agent of a pod: statvfs says what df says.
STATVFS = """import os, runpy, sys
pod = os.environ["EMULATED_POD"]
def row(name):
    with open(pod + "/" + name) as file:
        total, _, free = map(int, file.read().splitlines()[1].split()[1:4])
    return total, free
def statvfs(path):
    (total, free), (inodes, inodes_free) = row("blocks"), row("inodes")
    return os.statvfs_result((1024, 1024, total, free, free, inodes, inodes_free, inodes_free, 0, 255))
os.statvfs = statvfs
sys.argv = [word for word in sys.argv[1:] if word != "-I"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# EMULATED_PYTHON is the interpreter that a command named by its path (sshd.py).
# The agent reads its machine below the pod's directory, and fifteen times as often as on a real pod.
PYTHON = r"""#!/bin/sh
own() { "${EMULATED_PYTHON:-{python}}" "$@"; }
config() { sed '1s|^{|{"system_root": "'"$EMULATED_POD"'/root", "monitor_s": 1, |'; }
case "$EMULATED_AGENT $*" in
  cut_off*" start "*) sed 's|"api_url": "[^"]*"|"api_url": "http://127.0.0.1:9"|' | own "$@"; exit ;;
  dies*" start "*)
    said=$(own "$@"); status=$?
    pid=$(printf '%s' "$said" | sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p')
    [ -z "$pid" ] || kill -9 "$pid"
    printf '%s\n' "$said"; exit "$status" ;;
  *" start "*) config | own -I -c '{statvfs}' "$@"; exit ;;
esac
exec "${EMULATED_PYTHON:-{python}}" "$@"
"""


# pip installs into the pod's own directory (PIP_TARGET): the interpreter is the one of this machine.
PIP = r"""#!/bin/sh
exec python3 -m pip "$@"
"""


def write_programs(bin_dir: Path, python: str) -> None:
    """Write the programs of an image to `bin_dir`. `python` is the interpreter behind its python3."""
    bin_dir.mkdir(parents=True, exist_ok=True)
    interpreter = PYTHON.replace("{python}", python).replace("{statvfs}", STATVFS)
    programs = {"nvidia-smi": NVIDIA_SMI, "date": DATE, "df": DF, "dmesg": DMESG, "sshd": SSHD, "pip": PIP, "pip3": PIP}
    for name, text in {**programs, "python3": interpreter, "python": interpreter}.items():
        program = bin_dir / name
        program.write_text(text)
        program.chmod(0o755)


def write_facts(directory: Path, gpu_type: str, count: int, faults: Mapping[str, str] | None = None) -> None:
    """Write what the programs will say on the pod of this directory; `faults`: fault kind -> its detail, or nothing.

    Each file is replaced as a whole: the programs may run meanwhile.
    """
    for name, text in facts(gpu_type, count, faults or {}).items():
        _replace(directory / name, text)


def change_gpus(directory: Path, fields: Mapping[str, str]) -> None:
    """Let nvidia-smi give these values for these fields of all GPUs from now on. ValueError: it has no such field."""
    head, units, *rows = (line.split(",") for line in (directory / "gpus.csv").read_text().splitlines())
    for field, value in fields.items():
        column = head.index(field)
        for row in rows:
            row[column] = value
    _replace(directory / "gpus.csv", "".join(",".join(row) + "\n" for row in (head, units, *rows)))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)


def write_host_keys(directory: Path, *public_keys: str) -> None:
    """Write the host keys of the pod of this directory, in OpenSSH's one-line form, in place of those it had."""
    folder = directory / "ssh"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for number, key in enumerate(public_keys):
        (folder / f"ssh_host_{number}_key.pub").write_text(key + "\n")
