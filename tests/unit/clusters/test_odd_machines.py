"""A pod that claims to be a machine that cannot exist does not spoil the configuration of the other nodes."""

from dataclasses import replace

import pytest

from orchestrator.clusters.configuration import slurm_conf
from orchestrator.core.clusters.addresses import FabricAddress, NodeName
from orchestrator.core.clusters.view import Configuration, Node

NODE = Node("gpu-1", NodeName("gpu-1"), FabricAddress("10.65.0.2"), 0, 8, 1_024, 1, 1)


@pytest.mark.parametrize("cpus", [65_536, 10**17])
def test_the_number_of_cpus_fits_into_what_slurm_reads(cpus: int) -> None:
    text = slurm_conf(Configuration("train", NODE.name, (replace(NODE, cpus=cpus),)))
    assert f"CPUs={cpus}" not in text
    assert " CPUs=65000 " in text
