"""First contact: a pod proves that the host key at its address is its own.

The create call gives the pod a nonce, HMAC(a secret of ours, worker id), over the provider's API. Over SSH the pod
returns HMAC(nonce, host key) for each of its host keys. A relay shows a key of its own, which the pod does not sign; a
foreign host has no nonce. The nonce proves nothing else and is worthless once the host key is pinned in the row.
"""

import hashlib
import hmac
from collections.abc import Callable

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from orchestrator.core.failures import FailureCode
from orchestrator.pods import probe_scripts

VARIABLE = "BOOTSTRAP_NONCE"  # in the pod's environment
SECRET_BYTES = 32
PURPOSE = b"gpu-orchestrator bootstrap nonce 1"
MAX_KEYS = 8  # host keys that are read from one answer
MAX_ANSWER_BYTES = 16 * 1024
FIELDS = 4  # of a line that names a host key

# HMAC-SHA256 in POSIX sh with tr and a SHA-256 tool, which the deploy stage needs too. The nonce is 64 hexadecimal
# digits, exactly one block of SHA-256, so each padded key is the nonce with its sixteen characters replaced.
# `sshd -T` names the host keys that sshd is configured with. RunPod's /etc/rp_environment may lack the variable: older
# images copy only RUNPOD_* there; process 1 has the container's own environment.
SCRIPT = rf"""
PATH=$PATH:/usr/sbin:/sbin
hash() {{ if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi; }}
keyed() {{ printf %s "$nonce" | tr 0123456789abcdef "$1"; }}
bytes() {{
  left=$1 said=
  while [ ${{#left}} -ge 2 ]; do
    rest=${{left#??}}; value=$((0x${{left%"$rest"}})); left=$rest
    said="$said\\0$((value / 64))$((value / 8 % 8))$((value % 8))"
  done
  printf %b "$said"
}}
mac() {{
  inner=$({{ keyed '\006\007\004\005\002\003\000\001\016\017WTURSP'; printf %s "$1"; }} | hash)
  outer=$({{ keyed 'lmnohijkde=>?89:'; bytes "${{inner%% *}}"; }} | hash)
  printf %s "${{outer%% *}}"
}}
nonce=${{{VARIABLE}:-}}
if [ -z "$nonce" ] && [ -r /etc/rp_environment ]; then
  . /etc/rp_environment >/dev/null 2>&1; nonce=${{{VARIABLE}:-}}
fi
[ -n "$nonce" ] || nonce=$(tr '\0' '\n' 2>/dev/null </proc/1/environ | sed -n 's/^{VARIABLE}=//p')
[ -n "$nonce" ] || {{ echo no-nonce; exit 0; }}
files=$(sshd -T 2>/dev/null | sed -n 's/^hostkey //p')
count=0
for file in ${{files:-/etc/ssh/ssh_host_*_key}}; do
  count=$((count + 1)); [ "$count" -le {MAX_KEYS} ] || break
  line=$(cat "$file.pub" 2>/dev/null || ssh-keygen -y -P '' -f "$file" 2>/dev/null) || continue
  set -- $line
  [ -z "$2" ] || printf 'host-key %s %s %s\n' "$1" "$2" "$(mac "$1 $2")"
done
"""


def nonces(private_key: bytes) -> Callable[[str], str]:
    """Return the function worker id -> nonce. Its secret is derived from the SSH private key."""
    secret = HKDF(SHA256(), SECRET_BYTES, salt=None, info=PURPOSE).derive(private_key)
    return lambda worker_id: hmac.new(secret, worker_id.encode(), hashlib.sha256).hexdigest()


def command(limit_s: float) -> str:
    """Return the command that runs SCRIPT from its stdin."""
    return probe_scripts.limited_command(limit_s, "")


def proof(nonce: str, host_key: str) -> str:
    """Return the pod's expected answer for one host key, which is in OpenSSH's format without a comment."""
    return hmac.new(nonce.encode(), host_key.encode(), hashlib.sha256).hexdigest()


def refusal(answer: bytes, nonce: str, shown: str) -> tuple[FailureCode, str] | None:
    """Return why the key of the handshake is not the pod's. None if the pod proved it."""
    lines = answer[:MAX_ANSWER_BYTES].decode("utf-8", "replace").splitlines()
    found = [words[1:] for words in map(str.split, lines) if len(words) == FIELDS and words[0] == "host-key"]
    own = [
        f"{kind} {key}"
        for kind, key, mac in found[:MAX_KEYS]
        if hmac.compare_digest(mac.encode(), proof(nonce, f"{kind} {key}").encode())
    ]
    if shown in own:
        return None
    if own:
        return FailureCode.HOST_KEY_RELAYED, f"the host key shown is {shown}, the pod's own are {', '.join(own)}"
    if "no-nonce" in lines:
        return FailureCode.HOST_KEY_UNPROVEN, f"the machine that answers has no {VARIABLE} in its environment"
    if found:
        return FailureCode.HOST_KEY_UNPROVEN, "the machine that answers does not know the pod's nonce"
    return FailureCode.HOST_KEY_UNPROVEN, "the machine that answers shows no host key of its own"
