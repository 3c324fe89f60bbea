"""slurm.conf is a pure function of the nodes, and its SHA-256 changes with everything that a pod must learn."""

from dataclasses import replace

import pytest

from orchestrator.clusters import configuration, munge
from orchestrator.core.clusters.addresses import FabricAddress, NodeName
from orchestrator.core.clusters.view import MAX_NODES, Configuration, Node
from testbed.services.free_port import PORTS

FIRST = Node("gpu_1", NodeName("gpu-1"), FabricAddress("10.0.0.1"), 0, 16, 64_000, 2, 2)
SECOND = Node("gpu_2", NodeName("gpu-2"), FabricAddress("10.0.0.2"), 5, 16, None, 0, 0)
CONF = Configuration("train", FIRST.name, (SECOND, FIRST))


def test_nodes_have_their_fabric_address_and_their_own_port() -> None:
    base = configuration.controller_port("train")
    lines = configuration.slurm_conf(CONF).splitlines()
    nodes = [line for line in lines if line.startswith("NodeName")]
    first, second = nodes
    facts = "CPUs=16 RealMemory=64000 Gres=gpu:2 Feature=controller State=UNKNOWN"
    assert first == f"NodeName=gpu-1 NodeAddr=10.0.0.1 Port={base + 1} {facts}"
    assert second == f"NodeName=gpu-2 NodeAddr=10.0.0.2 Port={base + 6} CPUs=16 Feature=node State=UNKNOWN"
    assert "SlurmctldHost=@HOSTNAME@(10.0.0.1)" in lines
    assert "ClusterName=train" in lines


def test_the_text_is_the_same_for_every_order_of_the_nodes() -> None:
    assert configuration.conf_sha(CONF) == configuration.conf_sha(replace(CONF, nodes=(FIRST, SECOND)))


@pytest.mark.parametrize(
    "change", [{"cpus": 8}, {"gpus": 1}, {"gpu_files": 0}, {"address": FabricAddress("10.0.0.9")}, {"index": 1}]
)
def test_every_change_of_a_node_is_another_configuration(change: dict[str, object]) -> None:
    changed = replace(CONF, nodes=(replace(FIRST, **change), SECOND))  # type: ignore[arg-type]
    assert configuration.conf_sha(changed) != configuration.conf_sha(CONF)


def test_a_controller_that_is_no_node_is_an_error() -> None:
    with pytest.raises(ValueError, match="gpu-3 is not a node"):
        configuration.slurm_conf(replace(CONF, controller=NodeName("gpu-3")))


def test_ports_of_a_cluster_stay_in_its_block() -> None:
    ports = {configuration.slurm_port("train", index) for index in range(MAX_NODES)}
    assert len(ports | {configuration.controller_port("train")}) == MAX_NODES + 1
    assert {port // 100 for port in ports} == {configuration.controller_port("train") // 100}
    assert 20_000 <= min(ports) < max(ports) < 30_000
    for index in (-1, MAX_NODES):
        with pytest.raises(ValueError, match="has no node"):
            configuration.slurm_port("train", index)


def test_servers_of_tests_do_not_take_the_ports_of_clusters() -> None:
    assert PORTS.stop <= configuration.FIRST_PORT


def test_the_munge_key_is_derived_and_its_fingerprint_does_not_tell_it() -> None:
    key = munge.munge_key(b"secret", "train")
    assert key == munge.munge_key(b"secret", "train")
    assert len(key) == 128
    others = {munge.munge_key(b"secret", "train2"), munge.munge_key(b"other", "train")}
    assert len(others | {key}) == 3
    assert len(munge.fingerprint(key)) == 64
