"""Records that RunPod's published document allows, and odd ones: each affects only its own pod."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator import ports
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.runpod_transport import MAX_REPLY_NODES
from orchestrator.core.provider import PodStatus
from tests.db.conformance.runpod_contract import Records, violations
from tests.db.conformance.test_cloud import FLEET, spec
from tests.process.emulator.build import Api, emulated, request

SEEDS, PODS = 150, 4
OURS = {"ORCHESTRATOR_FLEET_ID": FLEET, "ORCHESTRATOR_WORKER_ID": "gpu-1"}
IDENTITY = ("id", "env")


class Account:
    """A server that answers whatever it was told to; it keeps what it was asked."""

    def __init__(self) -> None:
        self.reply: Any = {"pods": []}
        self.status = 200
        self.headers: dict[str, str] = {}
        self.deleted: list[str] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.url = ""

    async def answer(self, asked: Request) -> Response:
        """Any call."""
        body = await asked.body()
        self.asked.append((asked.method, asked.url.path, json.loads(body) if body else None))
        if asked.method == "DELETE" and self.status == 200:
            self.deleted.append(asked.url.path.rpartition("/")[2])
            return Response(status_code=204)
        raw = self.reply if isinstance(self.reply, bytes) else json.dumps(self.reply).encode()
        return Response(raw, self.status, self.headers, "application/json")


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    """The server, on loopback."""
    made = Account()
    app = Starlette(routes=[Route("/{rest:path}", made.answer, methods=["GET", "POST", "DELETE"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    listening = server.config.bind_socket()
    made.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving = asyncio.create_task(server._serve([listening]))  # without taking the process's signals
    yield made
    server.should_exit = server.force_exit = True  # without a wait for open connections
    await serving


@pytest.fixture
def cloud(account: Account) -> RunPodCloud:
    """The adapter in front of it."""
    return RunPodCloud("key", base_url=account.url, call_timeout_s=20)


@pytest.mark.parametrize("status", [302, 307])
async def test_no_call_follows_a_redirect(account: Account, cloud: RunPodCloud, status: int) -> None:
    """A create call has secrets in its body, and the empty list of another host is no proof that the pods are gone."""
    account.status, account.headers = status, {"Location": f"{account.url}/elsewhere?key=value"}
    host = account.url.removeprefix("http://")
    calls = (cloud.create_pod(spec()), cloud.list_pods(), cloud.delete_pod("p0"), cloud.pod_log("p0"), cloud.prices())
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, ports.Unavailable)
        assert f": {status} the API redirects to '{host}'; redirects are not followed" in str(answer)
    assert "/elsewhere" not in {path for _, path, _ in account.asked}
    assert [path for method, path, _ in account.asked if method == "POST"] == ["/v2/pods"]


@pytest.mark.parametrize("location", ["", "/v2/pods", "http://[", "//@"])
async def test_a_redirect_to_nowhere_blames_no_spec(account: Account, cloud: RunPodCloud, location: str) -> None:
    """Whatever the header holds: a spec that counts as refused would stop its pool."""
    account.status, account.headers = 307, {"Location": location}
    with pytest.raises(ports.Unavailable):
        await cloud.create_pod(spec())


@pytest.mark.parametrize("status", [202, 206, 299])
async def test_a_list_that_may_be_incomplete_proves_nothing(account: Account, cloud: RunPodCloud, status: int) -> None:
    """An empty part of a list would count as proof that all pods are gone."""
    account.status = status
    with pytest.raises(ports.Unavailable):
        await cloud.list_pods()


@pytest.mark.parametrize("many", [b"{},", b"[],", b"1,", b'"",'])
async def test_a_list_with_too_many_values_is_refused_before_it_is_decoded(
    account: Account, cloud: RunPodCloud, many: bytes
) -> None:
    """Such a list held the event loop for seconds, although it was decoded in a thread."""
    count = MAX_REPLY_NODES // many.count(b",")
    account.reply = b'{"pods": [{"id": "p0", "env": {}, "x": [' + many * count + b"1]}]}"
    with pytest.raises(ports.Unavailable, match="cannot be read"):
        await cloud.list_pods()


async def test_punctuation_in_texts_counts_as_no_value(account: Account, cloud: RunPodCloud) -> None:
    """A pod's environment may hold JSON."""
    holds_json = '{"a": [1, "\\\\", 2]},' * (MAX_REPLY_NODES // 4)
    account.reply = {"pods": [{"id": "p0", "env": OURS | {"SETTINGS": holds_json}}]}
    (pod,) = await cloud.list_pods()
    assert pod.id == "p0"


def single(record: dict[str, Any]) -> dict[str, Any]:
    """A pod of ours; members of RunPod's own clusters never are."""
    return {name: value for name, value in record.items() if name != "cluster"} | {"env": OURS}


async def test_whatever_the_document_allows_is_listed(account: Account, cloud: RunPodCloud) -> None:
    """Every pod comes through; of ours the owner is known, whatever else its record holds."""
    for seed in range(SEEDS):
        records = Records(seed)
        listed = [{**records.make("Pod"), "id": f"p{number}"} for number in range(PODS)]
        listed[0] = single(listed[0])
        assert not [what for one in listed for what in violations(one, "Pod")]
        account.reply = {"pods": listed}
        pods = {pod.id: pod for pod in await cloud.list_pods()}
        assert sorted(pods) == [f"p{number}" for number in range(PODS)], seed
        assert (pods["p0"].fleet_id, pods["p0"].worker_id) == (FLEET, "gpu-1"), seed
        assert [pods[f"p{number}"].fleet_id for number in range(1, PODS)] == [None] * (PODS - 1)


async def test_a_record_of_ours_that_is_damaged_stays_ours_and_can_be_deleted(
    account: Account, cloud: RunPodCloud
) -> None:
    """The details are unknown then; that it is there, and whose it is, is not."""
    for seed in range(SEEDS):
        records = Records(seed)
        damaged = records.damage({**single(records.make("Pod")), "id": "p0"}, keep=IDENTITY)
        account.reply = {"pods": [damaged, {**single(records.make("Pod")), "id": "p1"}]}
        first, second = await cloud.list_pods()
        assert (first.id, first.fleet_id, first.worker_id, second.id) == ("p0", FLEET, "gpu-1", "p1"), seed
        assert await cloud.delete_pod(first.id)
    assert account.deleted == ["p0"] * SEEDS


async def test_an_odd_foreign_record_has_no_effect(account: Account, cloud: RunPodCloud) -> None:
    """Of others' pods nothing but the id is needed; one without an id cannot be ours."""
    for seed in range(SEEDS):
        records = Records(seed)
        odd = records.damage({**records.make("Pod"), "env": {"THEIRS": "1"}}, keep=("env",))
        account.reply = {"pods": [odd, {**single(records.make("Pod")), "id": "p1"}]}
        pods = await cloud.list_pods()
        assert [pod.fleet_id for pod in pods if pod.id == "p1"] == [FLEET], seed
        assert all(pod.fleet_id is None for pod in pods if pod.id != "p1")


@pytest.mark.parametrize(
    "env", [None, 7, [], {**OURS, "ORCHESTRATOR_FLEET_ID": 7}, {**OURS, "ORCHESTRATOR_WORKER_ID": ""}]
)
async def test_a_pod_whose_owner_cannot_be_read_exists_and_is_left_alone(
    account: Account, cloud: RunPodCloud, env: Any
) -> None:
    """It is neither adopted nor deleted as an orphan, and no row of its name counts as gone."""
    account.reply = {"pods": [{"id": "p0", "name": "gpu-1", "status": "RUNNING", "env": env}]}
    (pod,) = await cloud.list_pods()
    assert (pod.id, pod.name, pod.fleet_id, pod.owner_unknown) == ("p0", "gpu-1", None, True)


@pytest.mark.parametrize(
    "reply",
    [
        {"pods": [{"name": "gpu-1", "status": "RUNNING", "env": OURS}]},
        {"pods": [{"id": "", "env": OURS}]},
        {"pods": [{"id": "x"}]},
        {"pods": [7]},
        {"pods": {}},
        {"pods": [], "pagination": None},
        {"pods": [], "pagination": {"hasNextPage": "no"}},
        {"pods": [], "pagination": {"hasNextPage": True, "nextCursor": ""}},
        b"[" * 200_000,
        b'{"pods": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    ],
    ids=lambda one: repr(one)[:50],
)
async def test_a_list_that_may_lack_a_pod_is_refused(account: Account, reply: Any) -> None:
    """What proves identity and completeness is required."""
    account.reply = reply
    with pytest.raises(ports.Unavailable):
        await RunPodCloud("key", base_url=account.url, call_timeout_s=3).list_pods()


async def test_a_list_without_pagination_is_whole_unless_lists_have_had_one(
    account: Account, cloud: RunPodCloud
) -> None:
    """The document knows none; an account that pages its lists does so always."""
    account.reply = {"pods": [{"id": "p0", "env": OURS}]}
    assert len(await cloud.list_pods()) == 1
    account.reply |= {"pagination": {"nextCursor": None, "hasNextPage": False}}
    assert len(await cloud.list_pods()) == 1
    account.reply = {"pods": []}
    with pytest.raises(ports.Unavailable):
        await cloud.list_pods()


async def test_ports_without_a_place_are_none_and_the_next_one_counts(account: Account, cloud: RunPodCloud) -> None:
    """A mapping is null until it is made."""
    mapped = [
        {"private": 22, "public": None, "type": "tcp", "ip": None},
        {"private": 22, "public": 34446, "type": "tcp", "ip": "195.26.233.3"},
    ]
    one = {"id": "p0", "status": "RUNNING", "env": OURS, "gpu": {"id": "NVIDIA A40"}, "cost": "0.44"}
    account.reply = {"pods": [{**one, "runtime": {"ports": mapped}, "ssh": {"proxy": None, "direct": None}}]}
    (pod,) = await cloud.list_pods()
    assert (pod.ssh_host, pod.ssh_port, pod.gpu_type, pod.gpu_count) == ("195.26.233.3", 34446, "NVIDIA A40", None)
    assert (pod.price_usd_per_hour, pod.machine_id) == (None, "195.26.233.3")


async def test_a_machine_is_named_by_its_public_address_only(account: Account, cloud: RunPodCloud) -> None:
    """A private address may be several machines': one strike would avoid them all."""
    for host, machine in (("195.26.233.3", "195.26.233.3"), ("10.0.0.7", None), ("127.0.0.1", None), ("a.b", None)):
        direct = {"host": host, "port": 34446, "username": "ubuntu", "command": "ssh"}
        account.reply = {"pods": [{"id": "p", "status": "RUNNING", "env": OURS, "ssh": {"direct": direct}}]}
        (pod,) = await cloud.list_pods()
        assert (pod.ssh_host, pod.machine_id, pod.ssh_user) == (host, machine, "ubuntu")


async def test_a_host_that_can_be_no_address_is_unknown(account: Account, cloud: RunPodCloud) -> None:
    """Nobody can connect to it; the mapping of its runtime counts instead, if that is an address."""
    odd = [
        f"{'a' * 64}.example",
        "a..b",
        ".a",
        "-a.b",
        "\ud800.example",
        "a\x00b",
        "a b",
        "a\n",
        "fe80::1%a",
        "é.example",
    ]
    fine = ["a.b", "a.b.", "host_1.example-2.com", "195.26.233.3", "2001:db8::1", f"{'a' * 63}.example"]
    for host, known in [*((one, None) for one in odd), *((one, one) for one in fine)]:
        ssh = {"direct": {"host": host, "port": 34446}}
        account.reply = {"pods": [{"id": "p", "status": "RUNNING", "env": OURS, "ssh": ssh}]}
        (pod,) = await cloud.list_pods()
        assert (pod.ssh_host, pod.ssh_port) == (known, 34446 if known else None), ascii(host)
        mapped = {"private": 22, "public": 22, "type": "tcp", "ip": host}
        account.reply["pods"][0] |= {"ssh": None, "runtime": {"ports": [mapped]}}
        (pod,) = await cloud.list_pods()
        assert pod.ssh_host == known, ascii(host)


async def test_a_pod_whose_id_no_address_can_hold_cannot_be_deleted(cloud: RunPodCloud) -> None:
    """A lone surrogate in an id is a refusal like any other, so that the next try waits."""
    with pytest.raises(ports.Unavailable):
        await cloud.delete_pod("\ud800")


async def test_a_pod_that_has_exited_is_not_free(account: Account, cloud: RunPodCloud) -> None:
    """RunPod shows 0 for it; the price that is known stays."""
    account.reply = {"pods": [{"id": "p0", "status": "EXITED", "env": OURS, "cost": 0.0}]}
    (pod,) = await cloud.list_pods()
    assert (pod.status, pod.price_usd_per_hour) == (PodStatus.EXITED, None)


async def test_catalogue_volumes_and_bill_are_read_as_the_document_words_them(
    account: Account, cloud: RunPodCloud
) -> None:
    """It accepts all that the document allows. An odd entry affects no other."""
    for seed in range(SEEDS):
        records = Records(seed)
        account.reply = {"gpus": [records.make("GpuType"), {"id": "G", "price": {"secure": 0.4, "community": 0}}, 7]}
        assert {key: usd for key, usd in (await cloud.prices()).items() if key.startswith("G|")} == {"G|SECURE": 0.4}
        sought = {**records.make("Volume"), "id": "v1", "name": "models", "dataCenter": "EU-RO-1"}
        account.reply = {"networkVolumes": [records.make("Volume"), sought]}
        assert await cloud.volume_id("models") == ("v1", "EU-RO-1")


async def test_the_emulator_answers_as_the_document_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the rest of the tests run against must not be kinder than RunPod, nor another API."""
    async with emulated(tmp_path_factory.mktemp("account")) as api:
        created = await api.create()
        assert not list(violations(created, "Pod"))
        await api.ssh_port(created["id"])
        assert not list(violations(await api.pod(created["id"]), "Pod"))
        await _answers(api, "/v2/pods", "ListPods")
        await _answers(api, "/v2/network-volumes", "ListVolumes")
        await _answers(api, "/v2/catalog/datacenters", "ListDataCenters")
        await _answers(api, "/v2/catalog/gpus", "ListGpuTypes")
        await _answers(api, "/v2/catalog/gpus?include=AVAILABILITY&product=POD&cloud=COMMUNITY", "ListGpuTypes")
        await _answers(api, "/v2/billing/pods?bucketSize=hour", "ListBills")
        await api.call("POST", f"/v2/pods/{created['id']}/action", {"action": "stop"})
        stopped = await api.pod(created["id"])
        assert not list(violations(stopped, "Pod"))
        assert (stopped["status"], stopped["cost"], stopped["ssh"]["direct"]) == ("EXITED", 0.0, None)


async def _answers(api: Api, path: str, name: str) -> None:
    assert not list(violations(await api.call("GET", path), name)), path


async def test_what_the_adapter_asks_for_is_what_the_emulator_takes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A CUDA version is a floor, as the document words it; what it does not allow is refused."""
    async with emulated(tmp_path_factory.mktemp("account")) as api:
        adapter = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=10)
        pod = await adapter.create_pod(spec(min_cuda="12.4"))
        asked = api.emulator.core.world.pods[pod.id].request
        assert asked.gpu is not None
        assert (asked.gpu.minCudaVersion, asked.gpu.allowedCudaVersions, asked.startSsh) == ("12.4", None, True)
        for gpu in ({"minCudaVersion": "12"}, {"minCudaVersion": "12.4", "allowedCudaVersions": ["12.4"]}):
            body = request(gpu={"id": "NVIDIA A40", **gpu})
            refused = await api.client.post("/v2/pods", json=body)
            assert refused.status_code in (400, 422)
