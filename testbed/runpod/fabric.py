"""The global network: a private address and a name for each pod that asked for one. Pods can be cut off from it.

Pods share this machine, so that an address is one of 127.0.1.x, and every process of every pod could reach it. A cut
between two pods is a library that is loaded into their processes (LD_PRELOAD): its connect() refuses the addresses that
the pod's file `cut` lists. It needs a C compiler, and no rights. Open connections stay when pods are cut off.
"""

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

from testbed.runpod.state import PodRecord

SUFFIX = ".runpod.internal"
NETWORK = "127.0.1."
HOSTS = range(1, 255)
RESERVED_PORT = 19_999  # UDP; who holds it on an address owns the address, on the whole machine
COMPILE_TIMEOUT_S = 60
GETENT = r"""#!/bin/sh
# The names of the global network, for the pods that are on it; everything else is the machine's.
case "$1 $2" in
  hosts\ *.runpod.internal | ahosts\ *.runpod.internal | ahostsv4\ *.runpod.internal)
    [ -s "$EMULATED_POD/fabric" ] || exit 2
    while read -r address name; do
      [ "$name" = "$2" ] || continue
      [ "$1" != hosts ] || { printf '%-15s %s\n' "$address" "$name"; exit 0; }
      printf '%-15s STREAM %s\n%-15s DGRAM\n%-15s RAW\n' "$address" "$name" "$address" "$address"
      exit 0
    done <"{hosts}"
    exit 2 ;;
esac
exec /usr/bin/getent "$@"
"""
CUT = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_cut(const struct sockaddr_in *to) {
  char path[4096], line[64], address[INET_ADDRSTRLEN];
  const char *pod = getenv("EMULATED_POD");
  int found = 0;
  if (!pod || ntohl(to->sin_addr.s_addr) >> 8 != 0x7f0001) return 0;
  snprintf(path, sizeof path, "%s/cut", pod);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  inet_ntop(AF_INET, &to->sin_addr, address, sizeof address);
  while (!found && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    found = strcmp(line, address) == 0;
  }
  fclose(file);
  return found;
}

int connect(int fd, const struct sockaddr *to, socklen_t size) {
  int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
  if (size >= sizeof(struct sockaddr_in) && to->sa_family == AF_INET && is_cut((const struct sockaddr_in *)to)) {
    errno = EHOSTUNREACH;
    return -1;
  }
  return real(fd, to, size);
}
"""


class Fabric:
    """The addresses of one emulator's pods."""

    def __init__(self, directory: Path) -> None:
        self.hosts = directory / "hosts"  # what the pods' getent reads
        self.library = directory / "cut.so"
        self._held: dict[str, tuple[str, socket.socket]] = {}  # by pod id
        self._lock = threading.Lock()  # pods boot at one time, each in a thread because of the compiler

    def open(self, bin_dir: Path) -> None:
        """Start without an address, and write the pods' getent to `bin_dir`."""
        self.hosts.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        program = bin_dir / "getent"
        program.write_text(GETENT.replace("{hosts}", str(self.hosts)))
        program.chmod(0o755)

    def close(self) -> None:
        """Give every address back."""
        for _, holder in self._held.values():
            holder.close()
        self._held.clear()

    def assign(self, pod: PodRecord) -> None:
        """Give the pod an address that no pod of this machine has, if it asked for one, and take it away otherwise.

        It has none if all are taken, or if this machine answers on 127.0.0.1 alone.
        """
        if not pod.request.globalNetworking:
            self.release(pod)
        with self._lock:
            if pod.request.globalNetworking and pod.fabric_ip is None and (reserved := _reserve()) is not None:
                self._held[pod.id] = reserved
                pod.fabric_ip = reserved[0]
                if not self.library.exists():
                    _compile(self.library)
                self._write()
        directory = pod.home.parent
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "fabric").write_text(f"{pod.fabric_ip}\n" if pod.fabric_ip else "")

    def release(self, pod: PodRecord) -> None:
        """Take a pod's address away: its name is not known any more."""
        with self._lock:
            _, holder = self._held.pop(pod.id, (None, None))
            if holder is not None:
                holder.close()
                self._write()
            pod.fabric_ip = None

    def environment(self, pod: PodRecord) -> dict[str, str]:
        """Return the environment with which the pod's processes can be cut off."""
        return {"LD_PRELOAD": str(self.library)} if pod.fabric_ip and self.library.exists() else {}

    def cut(self, pod: PodRecord, others: Iterable[PodRecord]) -> bool:
        """Let the pod reach all others on the network but these, and not be reached by them; False: cannot be done."""
        if not self.library.exists():
            return False
        cut_off = {other.id: other for other in others}
        for known in self._held:
            directory = pod.home.parent.parent / known
            reached = set(_lines(directory / "cut")) - {pod.fabric_ip or ""}
            _replace(directory / "cut", reached | ({pod.fabric_ip or ""} if known in cut_off else set()))
        _replace(pod.home.parent / "cut", {other.fabric_ip or "" for other in cut_off.values()})
        return True

    def _write(self) -> None:
        _replace(self.hosts, {f"{address} {pod_id}{SUFFIX}" for pod_id, (address, _) in self._held.items()})


def _reserve() -> tuple[str, socket.socket] | None:
    """The first free address, and the socket that holds it; None if no address can be held."""
    for host in HOSTS:
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            holder.bind((f"{NETWORK}{host}", RESERVED_PORT))
        except OSError:
            holder.close()
            continue
        return f"{NETWORK}{host}", holder
    return None


def _compile(library: Path) -> None:
    """Make the library; without a compiler there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return
    fresh = library.with_suffix(".new")
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(fresh), "-ldl"]
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run(command, input=CUT.encode(), check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S)
        fresh.replace(library)


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _replace(path: Path, lines: Iterable[str]) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text("".join(f"{line}\n" for line in sorted(lines)))
    fresh.replace(path)
