"""The global network, and RunPod's own clusters: what the API says of them, and what a pod sees."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from testbed.runpod.control import ControlRefused
from tests.db.conformance.runpod_contract import violations
from tests.process.emulator.build import Api, emulated, request, ssh, until

ANSWERER = """
import socket, sys
listening = socket.create_server((sys.argv[1], 0))
print(listening.getsockname()[1], flush=True)
while True:
    listening.accept()[0].close()
"""
CALL = "python3 -c 'import socket; socket.create_connection((\"{ip}\", {port}), 10)'"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """A fresh account."""
    async with emulated(tmp_path) as made:
        yield made


async def on_the_network(api: Api, name: str) -> tuple[dict[str, Any], int]:
    """A running pod with a private address, and its SSH port."""
    pod, port = await api.reachable(name, globalNetworking=True, dataCenterIds=["US-KS-2"])
    return await api.pod(pod["id"]), port


async def test_the_catalogue_tells_which_data_centres_have_the_network(api: Api) -> None:
    """As the document says, with its filter; an unknown centre is 404."""
    every = await api.call("GET", "/v2/catalog/datacenters")
    assert not list(violations(every, "ListDataCenters"))
    having = await api.call("GET", "/v2/catalog/datacenters?globalNetwork=true")
    without = await api.call("GET", "/v2/catalog/datacenters?globalNetwork=false")
    assert [one["id"] for one in without["dataCenters"]] == ["CA-MTL-1"]
    assert len(having["dataCenters"]) + 1 == len(every["dataCenters"])
    assert (await api.call("GET", "/v2/catalog/datacenters/US-KS-2"))["globalNetwork"] is True
    await api.call("GET", "/v2/catalog/datacenters/XX-1", status=404)
    await api.call("GET", "/v2/catalog/datacenters?globalNetwork=perhaps", status=400)


async def test_a_pod_that_asks_for_the_network_is_placed_where_there_is_one(api: Api) -> None:
    """A centre without it is refused when it is the only one asked for; the flag is a boolean."""
    only = request(globalNetworking=True, dataCenterIds=["CA-MTL-1"])
    refused = await api.call("POST", "/v2/pods", only, status=400)
    assert "global networking is not available in data center CA-MTL-1" in refused["detail"]
    await api.call("POST", "/v2/pods", request(globalNetworking="yes"), status=422)
    pod = await api.create(globalNetworking=True, dataCenterIds=["CA-MTL-1", "EU-CZ-1"])
    assert (await api.status(pod["id"], "RUNNING"))["dataCenterId"] == "EU-CZ-1"


async def test_each_pod_on_the_network_has_an_address_and_a_name_of_its_own(api: Api) -> None:
    """None before its machine is known, and none for a pod that did not ask."""
    plain, _ = await api.reachable("plain")
    assert (await api.pod(plain["id"]))["globalNetworking"] == {"enabled": False}
    asked = await api.create("one", globalNetworking=True)
    assert asked["globalNetworking"] == {"enabled": False}
    one, (two, _) = await api.status(asked["id"], "RUNNING"), await on_the_network(api, "two")
    assert not list(violations(one, "Pod"))
    assert one["globalNetworking"]["internalDns"] == f"{one['id']}.runpod.internal"
    addresses = {pod["globalNetworking"]["ip"] for pod in (one, two)}
    assert len(addresses) == 2
    assert all(address.startswith("127.0.1.") for address in addresses)


async def test_two_emulators_never_give_the_same_address(tmp_path: Path) -> None:
    """Tests that run at one time share this machine's loopback."""
    async with emulated(tmp_path / "one") as one, emulated(tmp_path / "two") as two:
        pods = [(await on_the_network(api, "pod"))[0] for api in (one, two)]
    assert len({pod["globalNetworking"]["ip"] for pod in pods}) == 2


async def test_the_network_of_a_pod_changes_at_its_next_start(api: Api) -> None:
    """PATCH says so, and a centre without the network refuses it."""
    pod, _ = await api.reachable(dataCenterIds=["US-KS-2"])
    path = f"/v2/pods/{pod['id']}"
    changed = await api.call("PATCH", path, {"globalNetworking": True})
    assert changed["globalNetworking"] == {"enabled": False}
    await api.call("POST", f"{path}/action", {"action": "restart"})

    async def enabled() -> bool:
        return bool((await api.pod(pod["id"]))["globalNetworking"]["enabled"])

    await until(enabled, "the pod is on the network")
    elsewhere = await api.create("elsewhere", dataCenterIds=["CA-MTL-1"])
    await api.call("PATCH", f"/v2/pods/{elsewhere['id']}", {"globalNetworking": True}, status=400)


async def test_the_names_of_the_network_are_known_on_it_and_nowhere_else(api: Api) -> None:
    """`getent hosts` on a pod; a name ends with its pod, and other names are the machine's."""
    (one, port), (two, _) = await on_the_network(api, "one"), await on_the_network(api, "two")
    _, plain_port = await api.reachable("plain")
    name = two["globalNetworking"]["internalDns"]
    async with ssh(port) as connection, ssh(plain_port) as outsider:
        found = await connection.run(f"getent hosts {name}")
        assert found.stdout.split() == [two["globalNetworking"]["ip"], name]
        own = await connection.run("getent ahostsv4 $RUNPOD_POD_ID.runpod.internal")
        assert own.stdout.split()[0] == one["globalNetworking"]["ip"]
        assert (await outsider.run(f"getent hosts {name}")).exit_status == 2
        assert (await connection.run("getent hosts localhost")).exit_status == 0
        await api.call("DELETE", f"/v2/pods/{two['id']}", status=204)

        async def forgotten() -> bool:
            return bool((await connection.run(f"getent hosts {name}")).exit_status == 2)

        await until(forgotten, "the name of a deleted pod is not known")


@pytest.mark.needs_program("cc", "gcc", "fix: apt-get install gcc libc6-dev")
async def test_the_line_between_two_pods_can_be_cut_and_healed(api: Api) -> None:
    """In both directions, for these two alone; SSH goes on."""
    members = [await on_the_network(api, name) for name in ("one", "two", "three")]
    connections = [await ssh(port) for _, port in members]
    ids, ips = [pod["id"] for pod, _ in members], [pod["globalNetworking"]["ip"] for pod, _ in members]
    ports = [await _answers(connection, ip) for connection, ip in zip(connections, ips, strict=True)]

    async def reached() -> list[list[bool]]:
        return [
            [
                (await connection.run(CALL.format(ip=ip, port=port))).exit_status == 0
                for ip, port in zip(ips, ports, strict=True)
            ]
            for connection in connections
        ]

    assert all(all(row) for row in await reached())
    await api.emulator.control("POST", f"/pods/{ids[0]}/fabric", {"from": [ids[1]]})
    assert await reached() == [[True, False, True], [False, True, True], [True, True, True]]
    await api.emulator.control("POST", f"/pods/{ids[0]}/fabric", {"from": []})
    assert all(all(row) for row in await reached())
    plain = await api.create("plain")
    with pytest.raises(ControlRefused, match="not on the global network"):
        await api.emulator.control("POST", f"/pods/{plain['id']}/fabric", {"from": [ids[0]]})
    for connection in connections:
        connection.abort()


async def _answers(connection: asyncssh.SSHClientConnection, ip: str) -> int:
    """Let a pod answer at its own address; the port."""
    process = await connection.create_process(f"exec python3 -c '{ANSWERER}' {ip}")
    return int(await process.stdout.readline())


async def test_members_of_runpods_own_clusters_are_listed_only_on_request_and_are_not_to_be_touched(api: Api) -> None:
    """They carry their membership; PATCH, DELETE and actions answer 409; the cluster's end takes them."""
    await api.create("ours")
    made = await api.emulator.control("POST", "/clusters", {"type": "SLURM", "pods": 2, "name": "theirs"})
    assert await api.names() == ["ours"]
    listed = (await api.call("GET", "/v2/pods?includeClusterPods=true"))["pods"]
    assert not [what for pod in listed for what in violations(pod, "Pod")]
    members = {pod["name"]: pod["cluster"] for pod in listed if "cluster" in pod}
    assert [(name, one["rank"], one["role"]) for name, one in sorted(members.items())] == [
        ("theirs-0", 0, "SLURM_CONTROLLER"),
        ("theirs-1", 1, "SLURM_COMPUTE"),
    ]
    assert {one["id"] for one in members.values()} == {made["id"]}
    path = f"/v2/pods/{made['pods'][0]}"
    assert (await api.call("GET", path))["cluster"]["id"] == made["id"]
    await api.call("DELETE", path, status=409)
    await api.call("PATCH", path, {"name": "mine"}, status=409)
    await api.call("POST", f"{path}/action", {"action": "terminate"}, status=409)
    await api.call("GET", "/v2/pods?includeClusterPods=yes", status=400)
    assert (await api.emulator.control("GET", "/ledger"))["alive"] == 1
    await api.emulator.control("DELETE", f"/clusters/{made['id']}")
    assert len((await api.call("GET", "/v2/pods?includeClusterPods=true"))["pods"]) == 1
    with pytest.raises(ControlRefused, match="type must be one of"):
        await api.emulator.control("POST", "/clusters", {"type": "DASK"})
