"""What a Cloud promises, shown on the RunPod adapter with the unmodified SDK against the emulator."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator import ports
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.runpod_replies import port_error
from orchestrator.adapters.runpod_transport import MAX_REPLY_S
from orchestrator.core.provider import Pod, PodSpec, PodStatus
from testbed.runpod.faults import BALANCE_TEXT, CAPACITY_TEXTS
from tests.process.emulator.build import GPU, PUBLIC_KEY, Api, emulated, until

DEADLINE_S = 0.5  # of a call, where a call is to run into it
FLEET = "test-fleet"
VOLUMES = [{"id": "v0", "name": "models", "size_gb": 10, "data_center": "EU-RO-1"}]


def spec(name: str = "gpu-1", **changes: Any) -> PodSpec:
    """What the orchestrator would ask for."""
    fields: dict[str, Any] = {
        "name": name,
        "fleet_id": FLEET,
        "image": "runpod/pytorch:2.4.0",
        "gpu_type": GPU,
        "gpu_count": 1,
        "cloud": "SECURE",
        "data_center": None,
        "disk_gb": 50,
        "min_memory_gb": 32,
        "min_vcpu": 8,
        "ports": ("22/tcp",),
        "public_key": PUBLIC_KEY,
        "env": {"EXTRA": "1"},
        "volume_id": None,
        "volume_mount_path": "/workspace",
    }
    return PodSpec(**{**fields, **changes})


@pytest.fixture(scope="module")
async def account(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One emulator for all of these tests."""
    async with emulated(tmp_path_factory.mktemp("account")) as made:
        await made.emulator.control("POST", "/settings", {"volumes": VOLUMES})
        yield made


@pytest.fixture
async def api(account: Api) -> AsyncIterator[Api]:
    """The account without faults, and without pods once the test is over."""
    yield account
    await account.emulator.control("DELETE", "/faults")
    await account.emulator.control("POST", "/settings", {"page_size": 100, "volumes": VOLUMES})
    for pod in account.emulator.core.world.live():
        account.emulator.core.end_pod(pod)


@pytest.fixture
def cloud(api: Api) -> RunPodCloud:
    """The adapter, with room for every retry."""
    return RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=10)


@pytest.fixture
def hasty(api: Api) -> RunPodCloud:
    """The adapter with a deadline that a hanging call runs into."""
    return RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=DEADLINE_S)


async def inject(api: Api, kind: str, **fields: Any) -> None:
    """Make something go wrong."""
    await api.emulator.control("POST", "/faults", {"kind": kind, **fields})


def calls(api: Api, call: str) -> int:
    """How often the API was called so."""
    return api.emulator.core.calls[call]


async def test_a_created_pod_is_the_one_asked_for(api: Api, cloud: RunPodCloud) -> None:
    """Everything in the spec reaches the provider; ownership and key travel in the pod's env."""
    volume_id, center = await cloud.volume_id("models")
    created = await cloud.create_pod(spec(data_center=center, volume_id=volume_id, gpu_count=2, database_id="d1"))
    assert (created.name, created.fleet_id, created.worker_id) == ("gpu-1", FLEET, "gpu-1")
    assert created.database_id == "d1"
    assert (created.status, created.has_runtime, created.gpu_type, created.gpu_count) == (
        PodStatus.PROVISIONING,
        False,
        GPU,
        2,
    )
    asked = api.emulator.core.world.pods[created.id].request
    assert asked.gpu is not None
    assert (asked.gpu.minRamPerGpu, asked.gpu.minVcpuCountPerGpu, asked.disk) == (32, 8, 50)
    assert (asked.ports, asked.startSsh, asked.cloud, asked.dataCenterIds) == (["22/tcp"], True, "SECURE", [center])
    assert asked.mounts.model_dump()["network"] == [{"volumeId": volume_id, "path": "/workspace"}]
    assert asked.env == {
        "EXTRA": "1",
        "PUBLIC_KEY": PUBLIC_KEY,
        "ORCHESTRATOR_FLEET_ID": FLEET,
        "ORCHESTRATOR_WORKER_ID": "gpu-1",
        "ORCHESTRATOR_DATABASE_ID": "d1",
    }


async def test_a_running_pod_shows_where_ssh_is(cloud: RunPodCloud) -> None:
    """Runtime, address, price and data centre, once they are known."""
    await cloud.create_pod(spec())

    async def with_address() -> Pod | None:
        (pod,) = await cloud.list_pods()
        return pod if pod.ssh_port else None

    pod = await until(with_address, "the address is listed")
    assert pod is not None
    assert (pod.status, pod.has_runtime, pod.ssh_host) == (PodStatus.RUNNING, True, "127.0.0.1")
    assert pod.price_usd_per_hour == pytest.approx(0.69)
    assert pod.data_center
    assert pod.created_at is not None
    assert pod.created_at.tzinfo is not None


async def test_a_machine_is_known_only_where_the_provider_names_it(api: Api, cloud: RunPodCloud) -> None:
    """What a user name might mean is no ground for avoiding a machine."""
    await cloud.create_pod(spec())
    (pod,) = await cloud.list_pods()
    assert pod.machine_id is None
    await inject(api, "odd_fields", fields={"machineId": "m-17"})
    (pod,) = await cloud.list_pods()
    assert pod.machine_id == "m-17"


async def test_a_pods_log_tells_what_its_image_is_doing(api: Api, cloud: RunPodCloud) -> None:
    """The stream does not end while the pod lives; what came before it paused is the answer."""
    await inject(api, "slow_pull", seconds=60)
    created = await cloud.create_pod(spec())

    async def pulling() -> bool:
        return "pulling image" in await cloud.pod_log(created.id)

    assert await until(pulling, "the log shows the pull")
    with pytest.raises(ports.Unavailable):
        await cloud.pod_log("nosuchpod")


async def test_a_deleted_pod_is_off_the_list_and_unknown_to_a_second_delete(cloud: RunPodCloud) -> None:
    """False proves nothing; it only says that the provider knew no such pod."""
    pod = await cloud.create_pod(spec())
    assert await cloud.delete_pod(pod.id) is True
    assert await cloud.list_pods() == ()
    assert await cloud.delete_pod(pod.id) is False


async def test_a_long_list_is_read_to_its_end(api: Api, cloud: RunPodCloud) -> None:
    """Seven pods in pages of three: three calls, each pod once."""
    await api.emulator.control("POST", "/settings", {"page_size": 3})
    for number in range(7):
        await cloud.create_pod(spec(f"gpu-{number}"))
    before = calls(api, "GET /v2/pods")
    assert sorted(pod.name for pod in await cloud.list_pods()) == [f"gpu-{number}" for number in range(7)]
    assert calls(api, "GET /v2/pods") - before == 3


async def test_one_page_that_fails_makes_the_whole_list_fail(api: Api, cloud: RunPodCloud) -> None:
    """Half a list is no list."""
    await api.emulator.control("POST", "/settings", {"page_size": 1})
    for number in range(3):
        await cloud.create_pod(spec(f"gpu-{number}"))
    await inject(api, "truncated_json", nth=[2, 3, 4])
    with pytest.raises(ports.Unavailable):
        await cloud.list_pods()


@pytest.mark.parametrize(
    "kind",
    [
        "truncated_json",
        "short_body",
        "html_reply",
        "null_reply",
        "empty_reply",
        "odd_reply",
        "repeated_cursor",
        "internal_error",
        "bad_gateway",
        "cut_before_commit",
        "cloudflare",
        "not_found",
    ],
)
async def test_a_list_that_cannot_be_read_is_never_an_empty_one(
    api: Api, cloud: RunPodCloud, hasty: RunPodCloud, kind: str
) -> None:
    """Whatever is wrong with it, for as long as it is."""
    await cloud.create_pod(spec())
    await inject(api, kind, operation="list")
    with pytest.raises(ports.Unavailable):
        await hasty.list_pods()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            requests.JSONDecodeError("Expecting value", "<html>", 0),
            "the answer cannot be read: no JSON, or not all of it",
        ),
        (requests.exceptions.ChunkedEncodingError(), "the answer was cut off"),
        (requests.ReadTimeout(), "no answer in time"),
        (requests.ConnectTimeout(), "no connection"),
        (requests.ConnectionError("a key"), "no connection, or it was cut"),
        (requests.TooManyRedirects(), "no answer"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_call_without_an_answer_says_what_happened(error: requests.RequestException, said: str) -> None:
    """In words and with the error's kind; not with its text, which may hold an address or a header."""
    assert str(port_error(error, "list pods")) == f"list pods: {said} ({type(error).__name__})"


@pytest.mark.parametrize("kind", ["unavailable", "rate_limited", "cut_before_commit", "truncated_json"])
async def test_a_read_is_tried_again(api: Api, cloud: RunPodCloud, kind: str) -> None:
    """One bad answer costs a moment, not a tick."""
    await inject(api, kind, operation="list", times=1)
    assert await cloud.list_pods() == ()


async def test_an_unknown_status_hides_no_pod(api: Api, cloud: RunPodCloud) -> None:
    """Neither it nor any other could be ended, as long as it lasts; it is there, and not taken for dead or alive."""
    await _list_one(api, {"status": "DANCING"}, {"ORCHESTRATOR_FLEET_ID": FLEET})
    (pod,) = await cloud.list_pods()
    assert (pod.status, pod.fleet_id, pod.has_runtime, pod.ssh_port) == (PodStatus.UNKNOWN, FLEET, False, None)


async def test_an_address_that_is_not_there_yet_is_none(api: Api, cloud: RunPodCloud) -> None:
    """RunPod may show where it will stand."""
    empty = {"direct": {"host": None, "port": None, "username": "root"}}
    await _list_one(api, {"ssh": empty, "runtime": None}, {"ORCHESTRATOR_FLEET_ID": FLEET})
    (pod,) = await cloud.list_pods()
    assert (pod.status, pod.ssh_host, pod.ssh_port) == (PodStatus.RUNNING, None, None)


FOREIGN_DAMAGE = [{"status": "DANCING"}, {"gpu": []}, {"cost": "much"}, {"runtime": 7}, {"ssh": 0}, {"env": None}]


@pytest.mark.parametrize("damage", FOREIGN_DAMAGE)
async def test_a_foreign_pod_with_odd_fields_does_not_break_the_list(
    api: Api, cloud: RunPodCloud, damage: dict[str, Any]
) -> None:
    """Of others' pods only the id, the name, the status and the env are looked at."""
    await _list_one(api, damage, {"THEIRS": "1"})
    (pod,) = await cloud.list_pods()
    assert (pod.name, pod.fleet_id, pod.worker_id) == ("someone", None, None)


async def _list_one(api: Api, damage: dict[str, Any], env: dict[str, str], name: str = "someone") -> None:
    """Have the API list one running pod with damaged fields."""
    pod = await api.create(name, env=env)
    await api.status(pod["id"], "RUNNING")
    await inject(api, "odd_fields", fields=damage)


REFUSALS = [
    *((CAPACITY_TEXTS[number], ports.NoCapacity) for number in range(len(CAPACITY_TEXTS))),
    (BALANCE_TEXT, ports.NoBalance),
    ("You have reached the maximum number of pods", ports.QuotaExceeded),
    ("image is not allowed", ports.BadSpec),
]


@pytest.mark.parametrize(("text", "error"), REFUSALS)
async def test_a_refused_create_says_why(api: Api, cloud: RunPodCloud, text: str, error: type[ports.PortError]) -> None:
    """The same status 400 means different things, told apart by the provider's words; nothing is tried again."""
    await inject(api, "no_capacity", detail=text)
    before = calls(api, "POST /v2/pods")
    with pytest.raises(error):
        await cloud.create_pod(spec())
    assert calls(api, "POST /v2/pods") - before == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("no_balance", ports.NoBalance),
        ("unauthorized", ports.ApiAuth),
        ("forbidden", ports.ApiAuth),
        ("cloudflare", ports.Unavailable),
        ("internal_error", ports.Unavailable),
        ("gateway_timeout", ports.Unavailable),
        ("rate_limited", ports.RateLimited),
        ("quota", ports.QuotaExceeded),
    ],
)
async def test_a_status_of_a_create_has_one_meaning(
    api: Api, cloud: RunPodCloud, kind: str, error: type[ports.PortError]
) -> None:
    """401 and 403 are the key's fault, unless the proxy in front said it; nothing exists afterwards."""
    await inject(api, kind, operation="create")
    with pytest.raises(error) as raised:
        await cloud.create_pod(spec())
    assert type(raised.value) is error
    assert api.emulator.api_key not in str(raised.value)
    assert await cloud.list_pods() == ()


async def test_a_spec_the_api_refuses_is_a_bad_spec(cloud: RunPodCloud) -> None:
    """Another try would be refused too."""
    for changes in ({"gpu_type": "GTX 970"}, {"ports": ("ssh",)}, {"cloud": "MOON"}, {"volume_id": "none"}):
        with pytest.raises(ports.BadSpec):
            await cloud.create_pod(spec(**changes))


async def test_a_create_whose_time_runs_out_between_tries_is_still_only_rate_limited(api: Api) -> None:
    """Nothing was created, so nothing needs looking for."""
    await inject(api, "rate_limited", operation="create", retry_after_s=60)
    brief = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=20)
    with pytest.raises(ports.RateLimited):
        await brief.create_pod(spec())


async def test_a_rate_limited_create_is_tried_again(api: Api, cloud: RunPodCloud) -> None:
    """The only refusal of a POST after which it is."""
    await inject(api, "rate_limited", operation="create", times=1)
    await cloud.create_pod(spec())
    assert len(await cloud.list_pods()) == 1


@pytest.mark.parametrize("kind", ["commit_then_500", "commit_then_502", "commit_then_cut"])
async def test_a_lost_reply_is_unavailable_and_the_pod_is_found_by_name(
    api: Api, cloud: RunPodCloud, kind: str
) -> None:
    """The create is not repeated, though there is time: exactly one pod exists, and bills."""
    await inject(api, kind)
    before = calls(api, "POST /v2/pods")
    with pytest.raises(ports.Unavailable):
        await cloud.create_pod(spec())
    assert [pod.worker_id for pod in await cloud.list_pods()] == ["gpu-1"]
    assert calls(api, "POST /v2/pods") - before == 1


async def test_a_reply_that_never_comes_is_lost_too(api: Api, cloud: RunPodCloud, hasty: RunPodCloud) -> None:
    """The call is given up at its deadline; its pod exists."""
    await inject(api, "commit_then_hang")
    with pytest.raises(ports.Unavailable, match="within"):
        await hasty.create_pod(spec())
    assert [pod.worker_id for pod in await cloud.list_pods()] == ["gpu-1"]


async def test_a_request_that_never_arrived_is_unavailable_too(
    api: Api, cloud: RunPodCloud, hasty: RunPodCloud
) -> None:
    """From outside it looks the same as a lost reply."""
    await inject(api, "cut_before_commit", operation="create")
    with pytest.raises(ports.Unavailable):
        await hasty.create_pod(spec())
    assert await cloud.list_pods() == ()


async def test_a_new_pod_may_be_missing_from_the_list_for_a_while(api: Api, cloud: RunPodCloud) -> None:
    """The listing lags behind the create."""
    await inject(api, "listing_lag", seconds=5)
    await cloud.create_pod(spec())
    assert await cloud.list_pods() == ()
    assert await until(cloud.list_pods, "the pod is listed")


async def test_a_delete_without_effect_leaves_the_pod_listed(api: Api, cloud: RunPodCloud) -> None:
    """Only the list proves absence."""
    pod = await cloud.create_pod(spec())
    await inject(api, "delete_lies", times=1)
    assert await cloud.delete_pod(pod.id) is True
    assert [listed.id for listed in await cloud.list_pods()] == [pod.id]
    assert await cloud.delete_pod(pod.id) is True
    assert await cloud.list_pods() == ()


async def test_a_delete_is_tried_again_and_a_lost_answer_has_no_effect(api: Api, cloud: RunPodCloud) -> None:
    """DELETE is idempotent: the second try finds nothing, which is said."""
    pods = [await cloud.create_pod(spec(name)) for name in ("gpu-1", "gpu-2")]
    await inject(api, "unavailable", operation="delete", times=1)
    assert await cloud.delete_pod(pods[0].id) is True
    await inject(api, "commit_then_cut", operation="delete", times=1)
    assert await cloud.delete_pod(pods[1].id) is False
    assert await cloud.list_pods() == ()


async def test_a_refused_delete_is_unavailable_since_the_next_may_be_taken(api: Api, cloud: RunPodCloud) -> None:
    """409: the pod is busy."""
    pod = await cloud.create_pod(spec())
    await inject(api, "conflict", operation="delete")
    with pytest.raises(ports.Unavailable):
        await cloud.delete_pod(pod.id)


async def test_every_call_ends_by_its_deadline(api: Api, hasty: RunPodCloud) -> None:
    """Also one whose answer comes a byte at a time, which the SDK would wait for without end."""
    await inject(api, "slow_drip", seconds=0.05)
    async with asyncio.timeout(30):
        with pytest.raises(ports.Unavailable, match="within"):
            await hasty.list_pods()


async def test_flicker_and_a_frozen_first_read_are_unknown_not_dead(api: Api, cloud: RunPodCloud) -> None:
    """One read without a runtime is passed on as it is; the next has it again."""
    pod = await cloud.create_pod(spec())
    await api.status(pod.id, "RUNNING")
    await inject(api, "flicker_runtime", times=1)
    assert [listed.has_runtime for listed in await cloud.list_pods()] == [False]
    assert [listed.has_runtime for listed in await cloud.list_pods()] == [True]


async def test_an_exited_pod_shows_no_address(api: Api, cloud: RunPodCloud) -> None:
    """The ports that the API still shows may belong to an outsider by now."""
    pod = await cloud.create_pod(spec())
    await api.ssh_port(pod.id)
    await api.emulator.control("POST", f"/pods/{pod.id}/kill", {"how": "exit"})
    (listed,) = await cloud.list_pods()
    assert (listed.status, listed.has_runtime, listed.ssh_port) == (PodStatus.EXITED, False, None)


async def test_registry_credentials_are_found_by_their_name_or_id_or_refused(api: Api, cloud: RunPodCloud) -> None:
    """None of that name, or several, is the setting's fault, and says what there is."""
    assert await cloud.registry_id("dockerhub") == await cloud.registry_id("reg1emulated") == "reg1emulated"
    created = await cloud.create_pod(spec(registry_id="reg1emulated"))
    assert api.emulator.core.world.pods[created.id].request.registry == "reg1emulated"
    with pytest.raises(ports.BadSpec, match="0 registry credentials are named 'dockrhub'; the account has: dockerhub"):
        await cloud.registry_id("dockrhub")
    await api.emulator.control("POST", "/settings", {"registries": [{"id": f"r{n}", "name": "twin"} for n in (1, 2)]})
    with pytest.raises(ports.BadSpec, match="2 registry credentials"):
        await cloud.registry_id("twin")
    assert await cloud.registry_id("r2") == "r2"
    with pytest.raises(ports.BadSpec, match="reg1emulated"):
        await cloud.create_pod(spec(name="gpu-2", registry_id="reg1emulated"))


async def test_a_volume_is_found_by_its_name_or_refused(api: Api, cloud: RunPodCloud) -> None:
    """None of that name, or several, is the setting's fault, and says what there is."""
    with pytest.raises(ports.BadSpec, match="models"):
        await cloud.volume_id("modles")
    twins = [{"id": f"v{n}", "name": "models", "size_gb": 10, "data_center": "EU-RO-1"} for n in (1, 2)]
    await api.emulator.control("POST", "/settings", {"volumes": twins})
    with pytest.raises(ports.BadSpec, match="2 network volumes"):
        await cloud.volume_id("models")


async def test_many_calls_run_at_once(api: Api, cloud: RunPodCloud) -> None:
    """Eight creates that take some seconds each take well under their sum."""
    api.emulator.core.create_s = 3.0
    started = time.monotonic()
    await asyncio.gather(*(cloud.create_pod(spec(f"gpu-{number}")) for number in range(8)))
    took_s = time.monotonic() - started
    api.emulator.core.create_s = 0
    assert took_s < 8 * 3.0


async def test_a_netrc_entry_does_not_replace_the_key(
    cloud: RunPodCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library would prefer it to the Bearer header."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert await cloud.list_pods() == ()


PROGRAM = """
import asyncio, json, logging, sys
before = (logging.root.level, list(logging.root.handlers))
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.ports import Unavailable
async def main():
    cloud = RunPodCloud(sys.argv[2], base_url=sys.argv[1], call_timeout_s=0.3)
    try:
        await cloud.list_pods()
    except Unavailable:
        return "unavailable"
answer = asyncio.run(main())
print(json.dumps([answer, before == (logging.root.level, list(logging.root.handlers))]))
"""


async def test_a_hanging_call_holds_up_no_exit_and_the_root_logger_is_left_alone(api: Api) -> None:
    """A process with a call under way ends at once, and not with the call, after MAX_REPLY_S."""
    await inject(api, "hang_before_commit", operation="list")
    command = [sys.executable, "-c", PROGRAM, api.emulator.url, api.emulator.api_key]
    soon_s = MAX_REPLY_S - 10
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=soon_s, check=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert json.loads(done.stdout) == ["unavailable", True]
