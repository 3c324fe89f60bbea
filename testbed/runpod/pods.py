"""The pods' directories, SSH servers and processes: how they boot, and how they end."""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from testbed.runpod import daemons, fake_tools, watchdog
from testbed.runpod.fabric import Fabric
from testbed.runpod.pod_environment import environment
from testbed.runpod.sshd import Mode, PodSshd
from testbed.runpod.state import PodRecord, World
from testbed.tasks import ended, exited

Kill = Literal["vanish", "exit", "freeze"]

# Shares of the boot time, from the create call on; what is left is sshd's start.
ASSIGNED_AT, RUNNING_AT, DETAILS_AT = 0.3, 0.8, 0.9
WATCHDOG_RESTART_S = 0.2
SSH_FAULTS = {
    "ssh_refused": Mode.REFUSED,
    "ssh_silent": Mode.SILENT,
    "ssh_not_ssh": Mode.NOT_SSH,
    "ssh_auth_refused": Mode.AUTH_REFUSED,
    "ssh_wrong_key": Mode.WRONG_KEY,
    "ssh_dropped": Mode.DROPPED,
    "ssh_relayed": Mode.RELAYED,
    "ssh_no_shell": Mode.NO_SHELL,
    "corrupt_uploads": Mode.CORRUPT,
}
# There from the first connection on, where an sshd opens some time after its port is shown.
AT_THE_PORT = {Mode.SILENT, Mode.NOT_SSH}


class PodHost:
    """The processes and servers of one emulator's pods."""

    def __init__(self, world: World, boot_s: tuple[float, float], server: type[PodSshd] = PodSshd) -> None:
        self.world = world
        self.boot_s = boot_s
        self._server = server  # what answers SSH: real processes, or a light pod's
        self.bin_dir = world.state_dir / "bin"
        self.fabric = Fabric(world.state_dir / "fabric")
        self.fake_clocks = False  # whether the daemons of pods that boot now get a clock that can be set
        self.api_url = ""  # the API as pods reach it, once it listens
        self._sshds: dict[str, PodSshd] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._sweeping = asyncio.Lock()
        self._to_kill: set[str] = set()
        self._watchdog: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Kill an earlier emulator's processes in this directory, write the pods' programs, start the watchdog."""
        pods_dir = self.world.state_dir / "pods"
        pods_dir.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(watchdog.kill, watchdog.below(str(pods_dir)))
        fake_tools.write_programs(self.bin_dir, sys.executable)
        self.fabric.open(self.bin_dir)
        daemons.write_programs(self.bin_dir)
        self._watchdog = asyncio.create_task(self._keep_watchdog(pods_dir))

    async def close(self) -> None:
        """End every pod. Return when none of their processes runs."""
        for task in [*self._tasks.values(), *self._endings]:
            task.cancel()
        for sshd in self._sshds.values():
            sshd.close()
        await asyncio.to_thread(watchdog.kill, watchdog.below(str(self.world.state_dir / "pods")))
        self.fabric.close()
        if self._watchdog is not None:
            await ended(self._watchdog)

    async def _keep_watchdog(self, pods_dir: Path) -> None:
        """Run a process that kills our pods after our end: it notices the end of its standard input."""
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(Path(watchdog.__file__)), str(pods_dir)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # we have killed every pod ourselves
                await exited(process)
            await asyncio.sleep(WATCHDOG_RESTART_S)

    def start(self, pod: PodRecord) -> None:
        """Start a pod's boot."""
        self._tasks[pod.id] = asyncio.create_task(self._boot(pod))

    async def _boot(self, pod: PodRecord) -> None:
        slow = pod.fault("slow_boot")
        boot_s = slow.seconds if slow else random.Random(f"boot:{self.world.seed}:{pod.order}").uniform(*self.boot_s)
        if pod.fault("stuck_provisioning"):
            return
        if pod.assigned_at is None:
            await asyncio.sleep(boot_s * ASSIGNED_AT)
            pod.assigned_at = time.time()
        self._make_directories(pod)
        await asyncio.to_thread(self.fabric.assign, pod)  # it may compile
        sshd = self._sshds[pod.id] = self._server(pod.home, lambda: self._environment(pod))
        pod.ssh_port = sshd.port
        pod.status = "STARTING"
        pod.log(f"pulling image {pod.request.image}")
        if pod.fault("stuck_starting"):
            return
        slow_pull = pod.fault("slow_pull")
        await asyncio.sleep(slow_pull.seconds if slow_pull else boot_s * (RUNNING_AT - ASSIGNED_AT))
        pod.log("image pulled")
        if pod.fault("boot_error"):
            pod.status = "ERROR"
            pod.log("error creating container")
            return
        pod.log("start container")
        pod.status, pod.started_at = "RUNNING", time.time()
        pod.runtime_null = pod.fault("no_runtime") is not None
        applying = asyncio.create_task(self._apply_faults(pod))
        try:
            await asyncio.sleep(boot_s * (DETAILS_AT - RUNNING_AT))
            mapped = not pod.fault("no_ssh_details") and "22/tcp" in pod.request.ports
            mode = next((mode for kind, mode in SSH_FAULTS.items() if pod.fault(kind)), Mode.NORMAL)
            serves = mapped and pod.request.startSsh
            if serves and mode in AT_THE_PORT:
                await self._open_ssh(pod, sshd, mode)
            pod.ssh_visible = mapped
            await asyncio.sleep(boot_s * (1 - DETAILS_AT))
            if serves and mode not in AT_THE_PORT:
                await self._open_ssh(pod, sshd, mode)
            await applying
        finally:
            applying.cancel()

    async def _open_ssh(self, pod: PodRecord, sshd: PodSshd, mode: Mode) -> None:
        dropped = pod.fault("ssh_dropped") or pod.fault("ssh_wrong_key")
        if dropped:
            sshd.drop_after_s = dropped.seconds
            sshd.drops_left = int(dropped.detail) if dropped.detail else None
        await sshd.open(mode)
        pod.log(f"sshd listens on port {sshd.port}")

    async def _apply_faults(self, pod: PodRecord) -> None:
        """Apply the faults that take effect some seconds after RUNNING."""
        flickers = pod.fault("flickers")
        if flickers is not None:
            pod.runtime_null = True
            await asyncio.sleep(flickers.seconds)
            pod.runtime_null = False
        fills = pod.fault("disk_fills")
        if fills is not None:
            await asyncio.sleep(fills.seconds)
            fake_tools.write_facts(pod.home.parent, pod.gpu_type, pod.gpu_count, {"disk_full": ""})
        endings: Mapping[str, Kill] = {"exits": "exit", "vanishes": "vanish", "freezes": "freeze"}
        for kind, how in endings.items():
            fault = pod.fault(kind)
            if fault is not None:
                await asyncio.sleep(fault.seconds)
                ending = asyncio.create_task(self.kill(pod, how))  # its own: killing ends this boot's task
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
                return

    def _make_directories(self, pod: PodRecord) -> None:
        ssh_dir = pod.home / ".ssh"
        ssh_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = pod.env.get("PUBLIC_KEY")
        if keys is not None:
            (ssh_dir / "authorized_keys").write_text(keys + "\n")
        faults = {fault.kind: fault.detail or "" for fault in pod.faults}
        fake_tools.write_facts(pod.home.parent, pod.gpu_type, pod.gpu_count, faults)
        if self.fake_clocks:
            daemons.set_clock(pod, 0)

    def _environment(self, pod: PodRecord) -> dict[str, str]:
        return {**self.fabric.environment(pod), **environment(pod, self.bin_dir, self.api_url)}

    async def kill(self, pod: PodRecord, how: Kill) -> None:
        """Remove the pod with its host, end its container, or freeze it while the API still shows it as running."""
        if how == "freeze":
            booting = self._tasks.pop(pod.id, None)
            if booting is not None:
                booting.cancel()
            sshd = self._sshds.get(pod.id)
            if sshd is not None:
                sshd.freeze()
                await sshd.open(Mode.SILENT)
            await asyncio.to_thread(watchdog.send, watchdog.one_of([str(pod.home.parent)]), signal.SIGSTOP)
            return
        if how == "vanish":
            self.world.end(pod)
        else:
            pod.status = "EXITED"  # its ports are still shown
            pod.log("container exited")
        await self.stop(pod)

    async def stop(self, pod: PodRecord) -> None:
        """Cut the pod's connections and kill its processes; returns when none is left."""
        task = self._tasks.pop(pod.id, None)
        if task is not None:
            task.cancel()
        sshd = self._sshds.pop(pod.id, None)
        if sshd is not None:
            sshd.close()
        self._to_kill.add(str(pod.home.parent))
        async with self._sweeping:  # one pass kills all pods that were stopped during the previous pass
            targets, self._to_kill = self._to_kill, set()
            if targets:
                await asyncio.to_thread(watchdog.kill, watchdog.one_of(targets))
        if pod.gone:
            self.fabric.release(pod)

    def ssh(self, pod: PodRecord) -> PodSshd | None:
        """The pod's SSH server, once its machine is assigned."""
        return self._sshds.get(pod.id)

    def restart(self, pod: PodRecord) -> None:
        """Boot a stopped pod again: another port, the same files."""
        pod.status, pod.ssh_visible, pod.ssh_port, pod.started_at = "STARTING", False, None, None
        self.start(pod)
