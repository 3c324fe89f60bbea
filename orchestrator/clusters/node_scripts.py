r"""The shell scripts that run on a member. POSIX sh, coreutils, grep, sed and awk; python3 only for `reach`.

A script gets its arguments as words, never as text inside of it, and secrets over stdin. It runs under timeout(1) and
prints lines `name=value`. An error of its own is a line `error=<CODE> <text>` and exit status 3.
"""

import shlex

from worker.protocol import MANAGED_KEY

KILL_AFTER_S = 2  # seconds between TERM and KILL of a script that is over time
FAILED = 3  # the exit status after an `error=` line

# $1 is always the cluster. ROOT is its directory. SHORT is a path to it that leaves room for the name of a socket: its
# address has 107 bytes at most.
BASE = r"""
LC_ALL=C; export LC_ALL
PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; export PATH
umask 077
die() { printf 'error=%s\n' "$*"; exit 3; }
case "${HOME:-}" in
  /*) case "$HOME" in *[!A-Za-z0-9._/-]*) die BAD_HOME "HOME is no plain path" ;; esac ;;
  *) die BAD_HOME "HOME is not set" ;;
esac
ROOT="$HOME/.gpu-cluster/$1"
SHORT="$ROOT"
if [ "${#ROOT}" -gt 45 ]; then SHORT="/tmp/.gpu-cluster-$(printf %s "$ROOT" | cksum | cut -d ' ' -f 1)"; fi
SLURM_CONF="$ROOT/etc/slurm.conf"; export SLURM_CONF

# is_ours PID DAEMON: whether the process is this cluster's daemon, by its command line. A zombie has none.
is_ours() {
  case "$1" in ''|*[!0-9]*) return 1 ;; esac
  words=$(tr '\0' '\n' <"/proc/$1/cmdline") 2>/dev/null || return 1
  program=${words%%
*}
  [ "${program##*/}" = "$2" ] || return 1
  case "$words
" in
    *"
$ROOT/etc/slurm.conf
"*|*"
--key-file=$ROOT/munge/key
"*) return 0 ;;
  esac
  return 1
}
# pid_of DAEMON: prints the pid of this cluster's daemon, from its pid file; fails if it does not run.
pid_of() {
  pid=
  { read -r pid <"$ROOT/run/$1.pid"; } 2>/dev/null
  is_ours "$pid" "$1" && printf %s "$pid"
}
# started PID: when a process began, in clock ticks after the boot: with its id, it names the process for ever.
started() { line=$(cat "/proc/$1/stat") 2>/dev/null || return 1; printf %s "${line##*) }" | cut -d ' ' -f 20; }
alive() { [ -r "/proc/$1/cmdline" ] && [ -n "$(tr -d '\0' <"/proc/$1/cmdline" 2>/dev/null)" ]; }
# end_pids GRACE PID...: TERM, then KILL after GRACE tenths of a second. Waits until all are gone.
end_pids() {
  tenths=$1; shift
  [ $# -gt 0 ] || return 0
  kill -TERM "$@" 2>/dev/null
  while [ "$tenths" -gt 0 ]; do
    left=; for one in "$@"; do alive "$one" && left="$left $one"; done
    [ -n "$left" ] || return 0
    sleep 0.1; tenths=$((tenths - 1))
  done
  kill -KILL $left 2>/dev/null
  tenths=30
  for one in $left; do
    while alive "$one" && [ "$tenths" -gt 0 ]; do sleep 0.1; tenths=$((tenths - 1)); done
  done
}
# all_of DAEMON: prints the pids of all such daemons of this cluster, even if the pid file is lost.
all_of() {
  found=$(grep -lzxF -e "$ROOT/etc/slurm.conf" -e "--key-file=$ROOT/munge/key" /proc/[0-9]*/cmdline 2>/dev/null)
  for number in $(printf '%s\n' "$found" | cut -d / -f 3); do
    is_ours "$number" "$1" && printf '%s ' "$number"
  done
}
stop_daemon() { end_pids "$2" $(all_of "$1"); rm -f "$ROOT/run/$1.pid"; }
"""

_START = (
    BASE
    + r"""
# started DAEMON COMMAND...: stop the daemon, start it, and wait until it runs.
started() {
  name=$1; shift
  stop_daemon "$name" 50
  "$@" </dev/null >/dev/null 2>"$ROOT/log/$name.err" || die NOT_STARTED "$name: $(last "$name")"
  tenths=50
  until pid_of "$name" >/dev/null; do
    [ "$tenths" -gt 0 ] || die NOT_STARTED "$name: $(last "$name")"
    sleep 0.1; tenths=$((tenths - 1))
  done
  sha256sum <"$ROOT/etc/template" | cut -d ' ' -f 1 >"$ROOT/run/$name.conf"
}
last() { cat "$ROOT/log/$1.err" "$ROOT/log/$1.log" 2>/dev/null | grep -iE 'error|fatal' | tail -n 1 | cut -c 1-300; }
pid_of munged >/dev/null || die MUNGE_DOWN "munged does not run"
# The variable marks the daemons' own children, whose command lines do not name the cluster.
start_slurmctld() { started slurmctld env GPU_CLUSTER_ROOT="$ROOT" slurmctld -f "$ROOT/etc/slurm.conf"; }
start_slurmd() {
  slurmd=$(command -v slurmd); stepd="${slurmd%/*}/slurmstepd"
  [ -x "$stepd" ] || stepd=$(command -v slurmstepd)
  started slurmd env GPU_CLUSTER_ROOT="$ROOT" slurmd ${stepd:+-d "$stepd"} -N "$1" -f "$ROOT/etc/slurm.conf"
}
"""
)
START_CONTROLLER = (
    _START
    + r"""
start_slurmctld
tenths=50
until timeout -k 1 2 scontrol ping 2>/dev/null | grep -q ' is UP'; do
  [ "$tenths" -gt 0 ] || die NOT_STARTED "slurmctld does not answer: $(last slurmctld)"
  sleep 0.1; tenths=$((tenths - 1))
done
echo started=slurmctld
"""
)
# $2: the node. A node that Slurm itself put down is resumed; one that was drained on request is not.
START_NODE = (
    _START
    + r"""
start_slurmd "$2"
tenths=100
while [ "$tenths" -gt 0 ]; do
  state=$(timeout -k 1 2 sinfo -h -N -n "$2" -o '%T %E' 2>/dev/null | head -n 1 | head -c 300)
  case "$state" in
    '') tenths=$((tenths - 20)) ;; # slurmctld does not answer; the node registers when it does
    *'drained: '*) break ;;
    *drain*|*inval*|*down*) [ $((tenths % 10)) -ne 0 ] ||
      timeout -k 1 2 scontrol update "NodeName=$2" State=RESUME >/dev/null 2>&1 ;;
    idle' '*|alloc*|mix*|compl*|plan*|reserv*) case "${state%% *}" in *\*) ;; *) break ;; esac ;;
  esac
  sleep 0.1; tenths=$((tenths - 1))
done
echo started=slurmd
"""
)
# $2: the node. Only the daemons that run are started again; running jobs continue.
RESTART = (
    _START
    + r"""
if pid_of slurmctld >/dev/null; then start_slurmctld; fi
if pid_of slurmd >/dev/null; then start_slurmd "$2"; fi
echo restarted=yes
"""
)
# $2: nodes. $3: seconds. $4: the controller's node. If no nodes are free, the job waits in Slurm's queue: it ends no
# other one, and runs before those that are submitted after it. While it waits, a later call finds it by its id.
SMOKE = (
    BASE
    + r"""
record="$ROOT/run/smoke.job"
fail() { printf 'srun=1\nerror=SMOKE_FAILED %s\n' "$1"; exit 0; }
answered() { head -c 16384 "$ROOT/log/smoke.out" | grep '^node='; echo srun=0; exit 0; }
show() { timeout -k 1 4 scontrol --oneliner show job "$job" 2>&1 | head -n 1 | head -c 4096; }
word() { printf '%s' "$said" | tr ' ' '\n' | sed -n "s/^$1=//p" | head -n 1; }
job=; asked=; state=
{ read -r job asked <"$record"; } 2>/dev/null
case "$job" in
  ''|*[!0-9]*) ;;
  *) said=$(show)
    case "$said" in *' JobName=cluster-smoke '*) state=$(word JobState) ;; *) state=UNKNOWN ;; esac ;;
esac
case "$state" in
  PENDING|CONFIGURING|RUNNING|COMPLETING|COMPLETED)
    [ "$asked" = "$2" ] || { timeout -k 1 4 scancel "$job" >/dev/null 2>&1; state=; } ;;
  *) state= ;;
esac
if [ -z "$state" ]; then
  rm -f "$record" "$ROOT/log/smoke.out" "$ROOT/log/smoke.err"
  cat >"$ROOT/run/smoke.sh" <<'END' || fail "cannot write below $ROOT"
#!/bin/sh
exec srun --quiet --ntasks-per-node=1 --time=1 "$@" sh -c 'printf "node=%s\n" "$SLURMD_NODENAME"'
END
  if timeout -k 2 "$3" sh "$ROOT/run/smoke.sh" --job-name=cluster-smoke --immediate=3 -N "$2" -n "$2" </dev/null \
    >"$ROOT/log/smoke.out" 2>"$ROOT/log/smoke.err"
  then answered; fi
  grep -q 'Unable to allocate' "$ROOT/log/smoke.err" || fail "$(tail -n 1 "$ROOT/log/smoke.err" | cut -c 1-300)"
  among=; [ "$2" = 1 ] || among='--constraint=controller|node --batch=controller'
  job=$(timeout -k 1 8 sbatch --parsable --job-name=cluster-smoke -N "$2" -n "$2" --ntasks-per-node=1 --time=1 \
    --no-requeue --nodelist="$4" $among --chdir=/ --output="$ROOT/log/smoke.out" --error="$ROOT/log/smoke.err" \
    "$ROOT/run/smoke.sh" 2>&1 | tail -n 1 | head -c 300)
  job=${job%%;*}
  case "$job" in ''|*[!0-9]*) fail "$job" ;; esac
  echo "$job $2" >"$record"
fi
left=$(($3 * 2)); patience=10
while [ "$left" -gt 0 ]; do
  said=$(show); state=$(word JobState)
  case "$state" in
    PENDING) patience=$((patience - 1)); [ "$patience" -gt 0 ] || break ;;
    ''|CONFIGURING|RUNNING|COMPLETING) ;;
    *) break ;;
  esac
  sleep 0.5; left=$((left - 1))
done
if [ "$state" = PENDING ]; then
  before=$(timeout -k 1 4 squeue -h -t RUNNING,COMPLETING -o 'job %i (%j)' 2>/dev/null | head -n 1 | head -c 100)
  printf 'waits=%s\n' "$(word Reason)${before:+, behind $before}" | tr -d '\000-\011\013-\037'
  exit 0
fi
rm -f "$record"
[ "$state" != COMPLETED ] || answered
timeout -k 1 4 scancel "$job" >/dev/null 2>&1
fail "${state:-slurmctld does not answer} $(tail -n 1 "$ROOT/log/smoke.err" 2>/dev/null | cut -c 1-250)"
"""
)
# $2: the node. $3: the reason
DRAIN_NODE = (
    BASE
    + r"""
said=$({ timeout -k 1 5 scontrol update "NodeName=$2" State=DRAIN "Reason=drained: $3" 2>&1; echo " $?"; } |
  head -c 300 | tr '\n' ' ')
case "$said" in *' 0 ') ;; *) die NOT_DRAINED "$said" ;; esac
echo drained=yes
"""
)
# Ends the daemons, the processes that serve jobs, and everything that those started. Then it removes the files.
REMOVE = (
    BASE
    + r"""
stop_daemon slurmctld 50
stop_daemon slurmd 30
# A process of a job that has left its parent still has the job's environment.
steps=$({ grep -lzxF -e "GPU_CLUSTER_ROOT=$ROOT" /proc/[0-9]*/environ
  grep -lzxF -e "SLURM_CONF=$ROOT/etc/slurm.conf" /proc/[0-9]*/environ | xargs -r grep -lz '^SLURM_JOB_ID='
  } 2>/dev/null | cut -d / -f 3 | tr '\n' ' ')
if [ -n "$steps" ]; then
  tree=$(cat /proc/[0-9]*/stat 2>/dev/null | sed 's/ (.*) / /' | awk -v steps="$steps" '
    { parent[$1] = $3 }
    END { n = split(steps, list, " "); for (i = 1; i <= n; i++) wanted[list[i]] = 1
      for (pass = 0; pass < 50; pass++) { more = 0
        for (p in parent) if (!(p in wanted) && (parent[p] in wanted)) { wanted[p] = 1; more = 1 }
        if (!more) break }
      for (p in wanted) printf "%s ", p }')
  end_pids 10 $tree
fi
stop_daemon munged 20
[ "$SHORT" = "$ROOT" ] || [ "$(readlink "$SHORT")" != "$ROOT" ] || rm -f "$SHORT"
rm -rf "$ROOT"
for one in munged slurmctld slurmd; do
  left=$(all_of "$one"); [ -z "$left" ] || die NOT_STOPPED "$one still runs: $left"
done
echo removed=yes
"""
)
# $2: the public key, as "type base64". Every other line stays.
AUTHORIZED_KEY = (
    BASE
    + rf"""
mkdir -p "$HOME/.ssh" || die NO_SPACE "cannot write below $HOME"
file="$HOME/.ssh/authorized_keys"
{{ [ ! -e "$file" ] || grep -v ' {MANAGED_KEY}$' "$file"
  printf '%s {MANAGED_KEY}\n' "$2"; }} >"$file.gpu-cluster"
tail -n 1 "$file.gpu-cluster" | grep -qxF -e "$2 {MANAGED_KEY}" || die NO_SPACE "cannot write $file"
chmod 600 "$file.gpu-cluster" && mv "$file.gpu-cluster" "$file" || die NO_SPACE "cannot write $file"
echo key=yes
"""
)


def command(script: str, limit_s: float, *arguments: str) -> str:
    """Return the command that runs a script with these arguments, for `limit_s` at most."""
    return shlex.join(["timeout", "-k", str(KILL_AFTER_S), f"{limit_s:g}", "sh", "-c", script, "sh", *arguments])
