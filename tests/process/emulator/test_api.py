"""RunPod's REST v2: requests, refusals, pages, logs, money."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.emulator.build import GPU, PATIENCE_S, Api, emulated, request, until


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One account for calls that change nothing."""
    async with emulated(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """A fresh account."""
    async with emulated(tmp_path) as made:
        yield made


async def test_a_call_without_a_key_is_401_and_with_a_wrong_one_403(api: Api) -> None:
    """Problems are application/problem+json with title, status, detail and errors."""
    async with httpx.AsyncClient(base_url=api.emulator.url, timeout=PATIENCE_S) as outsider:
        without = await outsider.get("/v2/pods")
        wrong = await outsider.get("/v2/pods", headers={"Authorization": "Bearer wrong"})
        nameless = await outsider.get("/v2/pods", headers={"User-Agent": ""})
    assert without.status_code == 401
    assert without.headers["content-type"].startswith("application/problem+json")
    assert without.json() == {"title": "Unauthorized", "status": 401, "detail": "missing bearer token", "errors": []}
    assert (wrong.status_code, wrong.json()["detail"]) == (403, "access denied")
    assert "error code: 1010" in nameless.text


async def test_every_answer_has_a_request_id_and_the_rate_limit(api: Api) -> None:
    """The headers that a client can pace itself by."""
    first, second = await api.client.get("/v2/pods"), await api.client.get("/v2/pods")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert '"minute";q=3000;w=60' in first.headers["ratelimit-policy"]
    assert first.headers["ratelimit"].startswith('"minute";r=')


async def test_calls_over_the_limit_are_429_with_retry_after(api: Api) -> None:
    """The limit is the setting's."""
    await api.emulator.control("POST", "/settings", {"per_minute": 1})
    await api.names()
    refused = await api.client.get("/v2/pods")
    assert refused.status_code == 429
    assert refused.json()["detail"] == "rate limit exceeded for the minute window"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"gpuTypeId": "x"}, "gpuTypeId"),
        ({"gpu": {"id": GPU, "count": 0}}, "gpu.count"),
        ({"gpu": {"id": GPU, "ram": 5}}, "gpu.ram"),
        ({"ports": ["22"]}, "ports.0"),
        ({"env": {"A": 1}}, "env.A"),
        ({"disk": "50"}, "disk"),
        ({"cloud": "ALL"}, "cloud"),
        ({"mounts": {"network": [{"volumeId": "v", "path": "workspace"}]}}, "mounts.network.0.path"),
        ({"image": None}, "image or templateId"),
        ({"gpu": None}, "exactly one of gpu and cpu"),
    ],
)
async def test_a_body_that_is_not_the_documented_one_is_422(
    shared: Api, changes: dict[str, Any], complaint: str
) -> None:
    """Unknown keys, wrong types, missing parts: `errors` names the field, and nothing is created."""
    refused = await shared.call("POST", "/v2/pods", request(**changes), status=422)
    assert any(complaint in line for line in refused["errors"])
    assert await shared.names() == []


async def test_a_huge_body_is_413_and_broken_json_400(api: Api) -> None:
    """Before anything else is looked at."""
    await api.call("POST", "/v2/pods", request(env={"A": "x" * 102_400}), status=413)
    broken = await api.client.post("/v2/pods", content=b'{"name":')
    assert broken.status_code == 400


async def test_a_pod_boots_through_its_states_and_shows_its_runtime_only_when_running(tmp_path: Path) -> None:
    """PROVISIONING, STARTING, RUNNING; the machine and then the SSH port become known on the way."""
    async with emulated(tmp_path, boot_s=(0.4, 0.5)) as api:
        # A busy machine must not miss the time between the machine's assignment and the end of the pull.
        await api.emulator.control("POST", "/faults", {"kind": "slow_pull", "seconds": 6})
        created = await api.create()
        assert (created["status"], created["runtime"], created["dataCenterId"]) == ("PROVISIONING", None, None)
        starting = await api.status(created["id"], "STARTING")
        assert (starting["runtime"], starting["ssh"]["direct"]) == (None, None)
        running = await api.status(created["id"], "RUNNING")
        assert running["runtime"]["gpus"] == [{"util": 0, "memoryUtil": 0}]
        port = await api.ssh_port(created["id"])
        seen = await api.pod(created["id"])
        assert seen["runtime"]["ports"] == [{"private": 22, "public": port, "type": "tcp", "ip": "127.0.0.1"}]
        assert seen["startedAt"] > seen["createdAt"]


async def test_the_list_comes_in_pages_newest_first(api: Api) -> None:
    """A cursor leads to the next page; a made-up one is refused."""
    await api.emulator.control("POST", "/settings", {"page_size": 2})
    for number in range(5):
        await api.create(f"gpu-{number}")
    names: list[str] = []
    path, more = "/v2/pods", True
    while more:
        page = await api.call("GET", path)
        names += [pod["name"] for pod in page["pods"]]
        more, path = page["pagination"]["hasNextPage"], f"/v2/pods?cursor={page['pagination']['nextCursor']}"
    assert names == ["gpu-4", "gpu-3", "gpu-2", "gpu-1", "gpu-0"]
    await api.call("GET", "/v2/pods?cursor=%C3%A4", status=400)


async def test_names_are_not_unique_and_ids_are(api: Api) -> None:
    """There is no idempotency key either."""
    first, second = await api.create("same"), await api.create("same")
    assert first["id"] != second["id"]
    assert await api.names() == ["same", "same"]


async def test_a_deleted_pod_is_gone_and_a_second_delete_is_404(api: Api) -> None:
    """DELETE answers 204 without a body."""
    pod = await api.create()
    await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
    gone = await api.call("DELETE", f"/v2/pods/{pod['id']}", status=404)
    assert gone["detail"] == "pod not found"
    assert await api.names() == []


async def test_actions_stop_start_and_terminate_and_others_are_refused(api: Api) -> None:
    """A stopped pod is EXITED; an action that its status does not offer is 409."""
    pod = await api.create()
    action = f"/v2/pods/{pod['id']}/action"
    await api.status(pod["id"], "RUNNING")
    await api.call("POST", action, {"action": "start"}, status=409)
    stopped = await api.call("POST", action, {"action": "stop"})
    assert (stopped["status"], stopped["runtime"]) == ("EXITED", None)
    await api.call("POST", action, {"action": "start"})
    await api.status(pod["id"], "RUNNING")
    await api.call("POST", action, {"action": "dance"}, status=422)
    await api.call("POST", action, {"action": "terminate"}, status=204)
    assert await api.names() == []


async def test_stock_and_data_centre_are_enforced(api: Api) -> None:
    """A GPU that is held cannot be rented twice; deleting frees it; another data centre is never substituted."""
    await api.emulator.control("POST", "/settings", {"offers": [{"stock": 0}, {"data_center": "EU-RO-1", "stock": 1}]})
    refused = await api.call("POST", "/v2/pods", request(dataCenterIds=["US-KS-2"]), status=400)
    assert "no longer any instances available" in refused["detail"]
    pod = await api.create(dataCenterIds=["US-KS-2", "EU-RO-1"])
    assert (await api.status(pod["id"], "RUNNING"))["dataCenterId"] == "EU-RO-1"
    await api.call("POST", "/v2/pods", request(), status=400)
    await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
    await api.create()


async def test_a_pod_costs_money_from_its_machine_to_its_delete(api: Api) -> None:
    """The ledger's seconds, the balance over GraphQL and the billing records tell the same."""
    await api.emulator.control("POST", "/settings", {"offers": [{"price_usd_per_hour": 3600.0}]})
    pod = await api.create()
    assert pod["cost"] == 3600.0
    await api.status(pod["id"], "RUNNING")
    await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
    ledger = await api.emulator.control("GET", "/ledger")
    entry = ledger["pods"][0]
    assert ledger["alive"] == 0
    assert entry["created_at"] <= entry["assigned_at"] < entry["ended_at"]
    assert entry["usd"] == pytest.approx(entry["seconds"], abs=0.01)
    balance = await api.call("POST", "/graphql", {"query": "{ myself { clientBalance currentSpendPerHr } }"})
    assert balance["data"]["myself"]["clientBalance"] == pytest.approx(1000 - ledger["usd_total"], abs=0.01)
    billed = await api.call("GET", f"/v2/billing/pods?podId={pod['id']}")
    assert billed["metadata"]["totals"]["totalAmount"] == pytest.approx(entry["usd"], abs=0.01)


async def test_an_account_without_credit_rents_nothing_and_loses_its_pods(api: Api) -> None:
    """402; pods without a network volume are deleted at once."""
    await api.create("plain")
    await api.create(
        "kept", dataCenterIds=["EU-RO-1"], mounts={"network": [{"volumeId": "vol1emulated", "path": "/workspace"}]}
    )
    await api.emulator.control("POST", "/settings", {"balance_usd": 0})

    async def only_one_left() -> bool:
        return await api.names() == ["kept"]

    await until(only_one_left, "the pod without a volume is deleted")
    refused = await api.call("POST", "/v2/pods", request(), status=402)
    assert "balance is too low" in refused["detail"]


async def test_the_system_log_is_a_resumable_event_stream(api: Api) -> None:
    """It tells the image pull, and goes on after Last-Event-ID; it ends with the pod."""
    pod = await api.create()
    await api.status(pod["id"], "RUNNING")
    await api.call("POST", f"/v2/pods/{pod['id']}/action", {"action": "stop"})
    path = f"/v2/pods/{pod['id']}/logs"
    whole = await api.client.get(path, params={"source": "system"})
    assert whole.headers["content-type"].startswith("text/event-stream")
    messages = [json.loads(line[6:])["message"] for line in whole.text.splitlines() if line.startswith("data: ")]
    assert messages[1] == "pulling image runpod/pytorch"
    rest = await api.client.get(path, headers={"Last-Event-ID": "1"})
    assert rest.text.startswith("id: 2\n")
    assert (await api.client.get(path, params={"tail": 1})).text.count("data: ") == 1


async def test_the_old_api_is_gone(api: Api) -> None:
    """REST v1 answers 410, an unknown path 404, a wrong method 405, all as problems."""
    await api.call("GET", "/v1/pods", status=410)
    assert (await api.call("GET", "/v2/nothing", status=404))["status"] == 404
    assert (await api.call("PUT", "/v2/pods", status=405))["status"] == 405


async def test_catalogue_volumes_and_keys_can_be_read(api: Api) -> None:
    """A GPU id is URL-encoded; availability is told only when asked for; the account's keys reach new pods."""
    await api.emulator.control("POST", "/settings", {"offers": [{"stock": 0}]})
    gpu = await api.call(
        "GET", "/v2/catalog/gpus/NVIDIA%20GeForce%20RTX%204090?include=AVAILABILITY&product=POD&count=1"
    )
    assert {entry["availability"] for entry in gpu["dataCenters"]} == {gpu["availability"]} == {"NONE"}
    assert all("availability" not in entry for entry in (await api.call("GET", "/v2/catalog/gpus"))["gpus"])
    assert (await api.call("GET", "/v2/catalog/datacenters"))["dataCenters"][0]["id"] == "EU-RO-1"
    assert (await api.call("GET", "/v2/network-volumes"))["networkVolumes"][0]["name"] == "models"
    await api.call("PUT", "/v2/account/ssh-keys", {"keys": ["ssh-ed25519 AAAA me"]})
    await api.emulator.control("POST", "/settings", {"offers": [{"stock": 1}]})
    assert (await api.create(env={}))["env"] == {"PUBLIC_KEY": "ssh-ed25519 AAAA me"}


async def test_the_same_seed_gives_the_same_ids_and_machines(tmp_path: Path) -> None:
    """A run can be repeated."""
    seen = []
    for directory in ("one", "two"):
        async with emulated(tmp_path / directory, seed=7) as api:
            pods = [await api.create(f"gpu-{number}") for number in range(3)]
            seen.append([(pod["id"], api.emulator.core.world.pods[pod["id"]].machine_id) for pod in pods])
    assert seen[0] == seen[1]


async def test_the_control_api_uses_http_and_refuses_nonsense(api: Api) -> None:
    """A misspelt fault, setting or kill is said so."""
    control = api.emulator.control_url
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for path, body in {
            "/faults": {"kind": "no_such_fault"},
            "/settings": {"boot": 1},
            "/pods/none/kill": {"how": "vanish"},
        }.items():
            assert (await client.post(control + path, json=body)).status_code == 400
        assert (await client.post(control + "/faults", json={"kind": "no_capacity", "nth": 2})).status_code == 200
        assert (await client.get(control + "/ledger")).json()["alive"] == 0
        assert (await client.get(control + "/faults")).json()["faults"][0]["nth"] == [2]
        await client.delete(control + "/faults")
        assert (await client.get(control + "/faults")).json()["faults"] == []


async def test_two_emulators_never_share_a_directory(tmp_path: Path, api: Api) -> None:
    """The second would kill the first one's pods as left over."""
    with pytest.raises(RuntimeError, match="state directory of its own"):
        async with emulated(api.emulator.state_dir):
            pass


async def test_a_pods_own_key_is_good_for_that_pod_alone(api: Api) -> None:
    """It may read and stop its pod; other pods, the list and the account are closed to it."""
    mine, other = await api.create("mine"), await api.create("other")
    await api.status(mine["id"], "RUNNING")
    key = api.emulator.core.world.pods[mine["id"]].api_key
    assert key not in json.dumps(await api.pod(mine["id"]))
    api.client.headers["Authorization"] = f"Bearer {key}"
    assert (await api.pod(mine["id"]))["id"] == mine["id"]
    closed = ["/v2/pods", f"/v2/pods/{other['id']}", "/v2/account/ssh-keys", "/v2/billing/pods", "/v2/pods/nobody"]
    for path in closed:
        await api.call("GET", path, status=403)
    await api.call("POST", "/v2/pods", request("third"), status=403)
    await api.call("POST", f"/v2/pods/{other['id']}/action", {"action": "stop"}, status=403)
    await api.call("POST", f"/v2/pods/{mine['id']}/action", {"action": "stop"})
    assert (await api.pod(mine["id"]))["status"] == "EXITED"
