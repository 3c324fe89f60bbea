r"""The script of a probe: what a member says about itself, Slurm and its network, as lines `name=value`.

Questions that can hang run at the same time, each under its own timeout. Each answer is one short write, so lines do
not mix. The last line is `end=`; a missing line is an unknown answer.
"""

from orchestrator.clusters.node_scripts import BASE
from worker.protocol import BASE_DIR

ASK_S = 4  # seconds for one question to a daemon or over the network
AGENT_TAIL_BYTES = 16_384
AGENT_LINES = 20
NODES_BYTES = 16_384  # of the list of nodes: 64 of 80 bytes, and more

# stdin: nothing. argv: the configuration of the agent's launch or "", the API's URL of new launches or "", then
# NAME=IP=PORT of each peer. The URL that the agent was started with is tested, as the agent calls it: without a proxy.
_REACH = rf"""
import json, re, socket, sys, threading, urllib.error, urllib.request
def say(text):
    sys.stdout.write("".join(c for c in text if " " <= c <= "~") + "\n"); sys.stdout.flush()
def started_with(path, url):
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(1 << 20)).get("api_url")
    except (OSError, ValueError, AttributeError):
        return url
    return found if isinstance(found, str) and re.match("https?://", found) else url
def api(url):
    name = re.sub("//[^/@]*@", "//", url)[:200].replace(" ", "")
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
        direct.open(url, timeout={ASK_S - 1}).close()
    except urllib.error.HTTPError:
        pass
    except Exception as error:
        return say("api=no %s %s" % (name, str(getattr(error, "reason", error))[:90]))
    say("api=yes " + name)
def peer(name, ip, port):
    try:
        socket.create_connection((ip, int(port)), {ASK_S - 1}).close()
    except OSError:
        return say("peer=%s no" % name)
    say("peer=%s yes" % name)
asked = [threading.Thread(target=peer, args=one.split("="), daemon=True) for one in sys.argv[3:]]
url = started_with(sys.argv[1], sys.argv[2])
if url:
    asked.append(threading.Thread(target=api, args=(url,), daemon=True))
for one in asked:
    one.start()
for one in asked:
    one.join({ASK_S})
"""

# $2: the agent's nonce or "". $3: python. $4: the API's URL of new launches or "". Then the peers.
PROBE = (
    BASE
    + rf"""
reach='{_REACH}'
if [ -r /etc/rp_environment ]; then . /etc/rp_environment >/dev/null 2>&1; fi
say() {{ printf '%s=%s\n' "$1" "$(printf %s "$2" | tr -d '\000-\037' | cut -c 1-300)"; }}
# ask NAME COMMAND...: the first line that a program prints. However much it prints, the shell keeps 300 bytes.
ask() {{ name=$1; shift; say "$name" "$("$@" 2>/dev/null | head -n 1 | head -c 300)"; }}
sum() {{ sha256sum <"$1" 2>/dev/null | cut -d ' ' -f 1; }}
# process DAEMON: its pid, its start in clock ticks after the boot, and the configuration that it was started with.
process() {{
  pid=$(pid_of "$1") || {{ echo "$1=none"; return; }}
  line=$(cat "/proc/$pid/stat" 2>/dev/null) || {{ echo "$1=none"; return; }}
  conf=$(cat "$ROOT/run/$1.conf" 2>/dev/null)
  set -- "$1" $(printf %s "${{line##*) }}" | cut -d ' ' -f 1,20)
  case "$2" in Z|X) echo "$1=none" ;; *) echo "$1=$pid $3 ${{conf:-unknown}}" ;; esac
}}
nonce=$2; python=$3; api=$4; shift 4

ask clock date +%s
ask hostname uname -n
ask uptime cut -d ' ' -f 1 /proc/uptime
lacks=
for one in munged munge unmunge slurmctld slurmd scontrol sinfo srun sbatch; do
  command -v "$one" >/dev/null 2>&1 || lacks="$lacks $one"
done
say lacks "$lacks"
ask cpus nproc
ask memory_kb sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo
cgroup=/sys/fs/cgroup
ask memory_limit sh -c 'cat "$0/memory.max" || cat "$0/memory/memory.limit_in_bytes"' $cgroup
say gpu_files "$(ls /dev 2>/dev/null | grep -cE '^nvidia[0-9]+$')"
if [ -s "$ROOT/etc/template" ] && [ -s "$ROOT/etc/slurm.conf" ]; then
  # A text that was changed on the pod has an identity of its own.
  if [ "$(sha256sum <"$ROOT/etc/slurm.conf")" = "$(cat "$ROOT/etc/written" 2>/dev/null)" ]
  then say conf "$(sum "$ROOT/etc/template")"; else say conf "$(sum "$ROOT/etc/slurm.conf")"; echo changed=yes; fi
else echo conf=none; fi
if [ -s "$ROOT/munge/key" ]; then
  read_by=$(cat "$ROOT/run/munged.key" 2>/dev/null)
  if running=$(pid_of munged) && [ "${{read_by#* }}" != "$running $(started "$running")" ]; then read_by=other; fi
  say key "$(sum "$ROOT/munge/key") ${{read_by%% *}}"
else echo key=none; fi
process munged
process slurmctld
process slurmd
if [ -n "$nonce" ] && [ -r "{BASE_DIR}/run/$nonce/logs/agent.log" ]; then
  tail -c {AGENT_TAIL_BYTES} "{BASE_DIR}/run/$nonce/logs/agent.log" |
    grep -E '"event": "(heartbeat_unanswered|heartbeat_refused|call_refused|token_not_renewed|token_renewed)"' |
    tail -n {AGENT_LINES} | cut -c 1-300 | sed 's/^/agent=/'
fi
if [ -n "$RUNPOD_POD_ID" ]; then
  ask fabric timeout -k 1 {ASK_S} getent hosts "$RUNPOD_POD_ID.runpod.internal" &
fi
if command -v slurmd >/dev/null 2>&1; then ask version timeout -k 1 {ASK_S} slurmd -V & fi
if pid_of munged >/dev/null && [ -S "$SHORT/munge/socket" ]; then
  {{ if timeout -k 1 {ASK_S} munge -n -S "$SHORT/munge/socket" 2>/dev/null | head -c 4096 |
      timeout -k 1 {ASK_S} unmunge -S "$SHORT/munge/socket" >/dev/null 2>&1
    then echo munge=yes; else echo munge=no; fi; }} &
fi
if [ -z "$lacks" ] && [ -s "$ROOT/etc/slurm.conf" ]; then
  {{ said=$(timeout -k 1 {ASK_S} scontrol ping 2>&1 | head -n 1 | head -c 300)
    case "$said" in *' is UP'*) echo ping=up ;; *) say ping "down $said" ;; esac; }} &
fi
launch=${{nonce:+{BASE_DIR}/run/$nonce/config.json}}
if [ -n "$api$nonce" ] || [ $# -gt 0 ]; then
  timeout -k 1 $(({ASK_S} + 2)) "$python" -I -c "$reach" "$launch" "$api" "$@" 2>/dev/null &
fi
nodes= # printed when nothing else writes: the list of a large cluster is longer than one write to a pipe
if [ -z "$lacks" ] && [ -s "$ROOT/etc/slurm.conf" ]; then
  nodes=$({{ timeout -k 1 {ASK_S} sinfo -h -N -o '%N %T' 2>&1 && echo all; }} | head -c {NODES_BYTES})
fi
wait
case "$nodes" in
  *"
all") printf '%s\n' "${{nodes%all}}" | sed -n 's/^..*/node=&/p'; echo nodes=all ;;
  *) say sinfo "$(printf '%s' "$nodes" | tail -n 1)" ;;
esac
echo end=
"""
)
