"""The scripts that install Slurm on a member and write its configuration (node_scripts.py says how scripts run)."""

from orchestrator.clusters.node_scripts import BASE

_TOOLS = r"""
missing() {
  for one in munged munge unmunge slurmctld slurmd scontrol sinfo srun sbatch; do
    command -v "$one" >/dev/null 2>&1 || printf '%s ' "$one"
  done
}
"""

# Debian's packages must not start daemons of their own: they would use another configuration and the same ports.
INSTALL = (
    BASE
    + _TOOLS
    + r"""
lacks=$(missing)
[ -n "$lacks" ] || { echo installed=yes; exit 0; }
command -v apt-get >/dev/null 2>&1 || die SLURM_MISSING "the image lacks $lacks and has no apt-get"
[ "$(id -u)" = 0 ] || die SLURM_MISSING "the image lacks $lacks; only root can install them"
mkdir -p "$ROOT/log" || die NO_SPACE "cannot write below $HOME"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod 755 "$policy"
fi
DEBIAN_FRONTEND=noninteractive; export DEBIAN_FRONTEND
log="$ROOT/log/install.log"
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 \
    -o Dpkg::Options::=--force-confold slurmctld slurmd slurm-client munge; } </dev/null >"$log" 2>&1 ||
  die INSTALL_FAILED "$(tail -n 3 "$log" | tr '\n' ' ' | cut -c 1-300)"
lacks=$(missing)
[ -z "$lacks" ] || die INSTALL_FAILED "the packages lack $lacks"
echo installed=yes
"""
)

# stdin: the key in base64, then the configuration's text in base64, one line each.
# $2: the SHA-256 of the text. $3: controller | worker. $4: GPUs. $5: files | counted
CONFIGURE = (
    BASE
    + _TOOLS
    + r"""
mkdir -p "$ROOT" && for one in etc munge state spool log run; do mkdir -p "$ROOT/$one"; done ||
  die NO_SPACE "cannot write below $HOME"
lacks=$(missing)
[ -z "$lacks" ] || die SLURM_MISSING "the image lacks $lacks"
if [ "$SHORT" != "$ROOT" ]; then
  [ -e "$SHORT" ] || ln -s "$ROOT" "$SHORT"
  [ "$(readlink "$SHORT")" = "$ROOT" ] || die SHORT_PATH_TAKEN "$SHORT belongs to something else"
fi
IFS= read -r key && IFS= read -r text || die BAD_INPUT "the key and the configuration did not arrive"
printf %s "$key" | base64 -d >"$ROOT/munge/key.part" && printf %s "$text" | base64 -d >"$ROOT/etc/template.part" &&
  [ "$(sha256sum <"$ROOT/etc/template.part" | cut -d ' ' -f 1)" = "$2" ] ||
  die BAD_INPUT "the configuration is not whole"
mv "$ROOT/munge/key.part" "$ROOT/munge/key"
host=$(uname -n); host=${host%%.*}
{ sed -e "s|@ROOT@|$SHORT|g" -e "s|@USER@|$(id -un)|g" -e "s|@HOSTNAME@|$host|g" "$ROOT/etc/template.part"
  slurmd=$(command -v slurmd)
  # Slurm that was moved after it was built does not find its plugins by itself.
  case "$slurmd" in /usr/sbin/*|/usr/bin/*) ;; *)
    for one in "${slurmd%/*}"/../lib/*/slurm*/auth_munge.so "${slurmd%/*}"/../lib/slurm*/auth_munge.so; do
      [ ! -e "$one" ] || { printf 'PluginDir=%s\n' "$(cd "${one%/*}" && pwd)"; break; }
    done ;;
  esac
} >"$ROOT/etc/slurm.conf.part" || die NO_SPACE "cannot write the configuration"
{ echo "AutoDetect=off"; number=0
  if [ "$5" = files ]; then
    for one in $(ls /dev 2>/dev/null | grep -E '^nvidia[0-9]+$' | sort -k 1.7n); do
      [ "$number" -lt "$4" ] || break
      echo "Name=gpu File=/dev/$one"; number=$((number + 1))
    done
  else # Slurm drops GPUs without a file, so each gets one that means nothing
    while [ "$number" -lt "$4" ]; do
      : >>"$ROOT/etc/gpu$number"; echo "Name=gpu File=$ROOT/etc/gpu$number"; number=$((number + 1))
    done
  fi; } >"$ROOT/etc/gres.conf" || die NO_SPACE "cannot write the configuration"
# After a job, on each node: ends the processes that it has left. They have its id and the cluster in their environment,
# as the epilog itself has, which also has the kind of script.
cat >"$ROOT/etc/epilog.part" <<'END' || die NO_SPACE "cannot write the configuration"
#!/bin/sh
has() { grep -qszxF -e "$1" "$2"; }
for one in $(grep -lszxF -e "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ); do
  pid=${one#/proc/}; pid=${pid%/environ}
  [ "$pid" != $$ ] && has "SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME" "$one" &&
    ! has SLURM_SCRIPT_CONTEXT=epilog_slurmd "$one" && kill -KILL "$pid"
done 2>/dev/null
exit 0 # another status would drain the node
END
chmod 700 "$ROOT/etc/epilog.part" && mv "$ROOT/etc/epilog.part" "$ROOT/etc/epilog" ||
  die NO_SPACE "cannot write the configuration"
mv "$ROOT/etc/template.part" "$ROOT/etc/template" && mv "$ROOT/etc/slurm.conf.part" "$ROOT/etc/slurm.conf" &&
  sha256sum <"$ROOT/etc/slurm.conf" >"$ROOT/etc/written" || die NO_SPACE "cannot write the configuration"
sum=$(sha256sum <"$ROOT/munge/key" | cut -d ' ' -f 1)
# munged.key: which key the running munged has read. Another munged may have been started with another key since.
running=$(pid_of munged) && [ "$(cat "$ROOT/run/munged.key" 2>/dev/null)" = "$sum $running $(started "$running")" ] || {
  stop_daemon munged 20
  munged --force --key-file="$ROOT/munge/key" --socket="$SHORT/munge/socket" --pid-file="$ROOT/run/munged.pid" \
    --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/munge/seed" --num-threads=10 --origin=127.0.0.1 \
    </dev/null >/dev/null 2>"$ROOT/log/munged.err" ||
    die MUNGE_NOT_STARTED "$(tail -n 1 "$ROOT/log/munged.err" | cut -c 1-300)"
  running=$(pid_of munged) || die MUNGE_NOT_STARTED "it ended at once"
  printf '%s %s %s' "$sum" "$running" "$(started "$running")" >"$ROOT/run/munged.key"
}
if [ "$3" != controller ]; then stop_daemon slurmctld 50; rm -rf "$ROOT/state"; mkdir "$ROOT/state"; fi
echo configured=yes
"""
)
