"""RunPod's REST v2 as its published document describes it, reduced to facts: names, types, required, nullable.

`violations` checks a value against it; `Records` makes values that it allows, required and nullable fields both ways.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STATUSES = ("PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED")
ACTIONS = ("start", "stop", "restart", "terminate")
LEVELS = ("NONE", "LOW", "MEDIUM", "HIGH")
ROLES = ("SLURM_CONTROLLER", "SLURM_COMPUTE", "RAY_HEAD", "RAY_WORKER")
REGIONS = (
    *("NORTH_AMERICA", "SOUTH_AMERICA", "EUROPE", "ASIA", "MIDDLE_EAST", "AFRICA", "OCEANIA", "ANTARCTICA", "UNKNOWN"),
)
MOMENTS = ("2026-11-20T10:15:00Z", "2026-11-20T10:15:00.123456Z", "2026-11-20T11:15:00+01:00")


@dataclass(frozen=True, slots=True)
class Field:
    """One property: a kind (or the name of an object of SCHEMAS), whether it must be there, whether it may be null."""

    kind: str
    required: bool = False
    nullable: bool = False
    many: bool = False  # a list of them
    one_of: tuple[str, ...] = ()


def must(kind: str, **more: Any) -> Field:
    """A required property."""
    return Field(kind, required=True, **more)


ENDPOINT = {"host": must("string"), "port": must("integer"), "username": must("string"), "command": must("string")}
SCHEMAS: dict[str, dict[str, Field]] = {
    "Gpu": {"id": must("string"), "count": Field("integer")},
    "Utilization": {"util": Field("integer")},
    "GpuUtilization": {"util": Field("integer"), "memoryUtil": Field("integer")},
    "Port": {
        "private": Field("integer"),
        "public": Field("integer", nullable=True),
        "type": Field("string", one_of=("tcp", "http")),
        "ip": Field("string", nullable=True),
    },
    "Runtime": {
        "uptime": Field("integer"),
        "gpus": Field("GpuUtilization", many=True),
        "cpu": Field("Utilization"),
        "memory": Field("Utilization"),
        "ports": Field("Port", many=True),
    },
    "Endpoint": ENDPOINT,
    "Ssh": {"proxy": must("Endpoint", nullable=True), "direct": must("Endpoint", nullable=True)},
    "Networking": {"enabled": must("boolean"), "ip": Field("string"), "internalDns": Field("string")},
    "Membership": {
        "id": must("string"),
        "rank": must("integer", nullable=True),
        "role": Field("string", one_of=ROLES),
        "ip": Field("string"),
    },
    "Pod": {
        "id": must("string"),
        "name": must("string"),
        "status": must("string", one_of=STATUSES),
        "actions": must("string", many=True, one_of=ACTIONS),
        "image": must("string"),
        "args": must("string"),
        "disk": must("integer"),
        "mounts": must("map"),
        "ports": must("string", many=True),
        "env": must("map"),
        "registry": must("string", nullable=True),
        "gpu": Field("Gpu"),
        "cloud": must("string", one_of=("SECURE", "COMMUNITY")),
        "dataCenterId": must("string", nullable=True),
        "cudaVersion": must("string", nullable=True),
        "ssh": must("Ssh"),
        "template": must("string", nullable=True),
        "cost": must("number"),
        "locked": must("boolean"),
        "globalNetworking": must("Networking"),
        "cluster": Field("Membership"),
        "runtime": must("Runtime", nullable=True),
        "createdAt": must("moment"),
        "startedAt": must("moment", nullable=True),
    },
    "Price": {"secure": must("number"), "community": must("number"), "serverless": Field("number")},
    "MaxCount": {"secure": must("integer"), "community": must("integer")},
    "Place": {"id": must("string"), "name": must("string"), "availability": must("string", one_of=LEVELS)},
    "Cuda": {"version": must("string"), "available": must("boolean")},
    "GpuType": {
        "id": must("string"),
        "name": must("string"),
        "pool": must("string", nullable=True),
        "manufacturer": must("string", one_of=("NVIDIA", "AMD", "UNKNOWN")),
        "memory": must("integer"),
        "secure": must("boolean"),
        "community": must("boolean"),
        "price": must("Price"),
        "maxCount": must("MaxCount"),
        "availability": Field("string", one_of=LEVELS),
        "dataCenters": Field("Place", many=True),
        "cudaVersions": Field("Cuda", many=True),
    },
    "Volume": {
        "id": must("string"),
        "name": must("string"),
        "size": must("integer"),
        "dataCenter": must("string"),
        "type": must("string"),
    },
    "DataCenter": {
        "id": must("string"),
        "name": must("string"),
        "region": must("string", one_of=REGIONS),
        "networkVolumeTypes": must("string", many=True, one_of=("STANDARD", "HIGH_PERFORMANCE")),
        "compliance": must("string", many=True),
        "globalNetwork": must("boolean"),
    },
    "Amounts": {name: must("number") for name in ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount")},
    "Bill": {
        "podId": must("string"),
        "startTime": must("moment"),
        "endTime": must("moment"),
        **{name: must("number") for name in ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount")},
    },
    "BillQuery": {
        "startTime": must("moment"),
        "endTime": must("moment"),
        "bucketSize": must("string"),
        "podId": Field("string", nullable=True),
    },
    "BillMetadata": {
        "query": must("BillQuery"),
        "recordCount": must("integer"),
        "uniquePodCount": must("integer"),
        "totals": must("Amounts"),
    },
    "ListPods": {"pods": must("Pod", many=True)},
    "ListGpuTypes": {"gpus": must("GpuType", many=True)},
    "ListDataCenters": {"dataCenters": must("DataCenter", many=True)},
    "ListVolumes": {"networkVolumes": must("Volume", many=True)},
    "ListBills": {"records": must("Bill", many=True), "metadata": must("BillMetadata")},
}
PLAIN: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "moment": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "map": (dict,),
}
SAMPLES: dict[str, tuple[Any, ...]] = {
    "string": ("", "x", "NVIDIA A40", "\u202e\x1b[2J", "ä" * 300),
    "moment": MOMENTS,
    "integer": (0, 1, 22, 34_446, 2**40),
    "number": (0, 0.0, 0.44, 3, 1e300),
    "boolean": (True, False),
    "map": ({},),
}
DAMAGE: tuple[Any, ...] = (None, "", "0.44", 7, -1, 0.5, True, [], {}, [[]], {"x": None}, "x" * 100_000, float("nan"))


def violations(value: Any, name: str, where: str = "") -> Iterator[str]:
    """Say what the document does not allow; properties that it does not know are allowed in a response."""
    if not isinstance(value, dict):
        yield f"{where or name} is not an object"
        return
    for key, field in SCHEMAS[name].items():
        at = f"{where}.{key}".lstrip(".")
        if key not in value:
            if field.required:
                yield f"{at} is missing"
        elif value[key] is None:
            if not field.nullable:
                yield f"{at} is null"
        elif not field.many:
            yield from _wrong(value[key], field, at)
        elif not isinstance(value[key], list):
            yield f"{at} is not a list"
        else:
            for one in value[key]:
                yield from _wrong(one, field, at)


def _wrong(value: Any, field: Field, at: str) -> Iterator[str]:
    if field.kind in SCHEMAS:
        yield from violations(value, field.kind, at)
    elif not isinstance(value, PLAIN[field.kind]) or (isinstance(value, bool) and field.kind != "boolean"):
        yield f"{at} is not a {field.kind}: {value!r}"
    elif field.one_of and value not in field.one_of:
        yield f"{at} is none of {field.one_of}: {value!r}"


class Records:
    """Makes values that the document allows, and damages them; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def make(self, name: str) -> dict[str, Any]:
        """One object: optional properties may be missing, nullable ones may be null."""
        made: dict[str, Any] = {}
        for key, field in SCHEMAS[name].items():
            if not field.required and self.dice.random() < 0.4:
                continue
            if field.nullable and self.dice.random() < 0.4:
                made[key] = None
            elif field.many:
                made[key] = [self._one(field) for _ in range(self.dice.randrange(3))]
            else:
                made[key] = self._one(field)
        return made

    def _one(self, field: Field) -> Any:
        if field.kind in SCHEMAS:
            return self.make(field.kind)
        if field.one_of:
            return self.dice.choice(field.one_of)
        return self.dice.choice(SAMPLES[field.kind])

    def damage(self, record: dict[str, Any], *, keep: tuple[str, ...]) -> dict[str, Any]:
        """The record with one property replaced or removed, at any depth below those that are kept."""
        spoilt = dict(record)
        key = self.dice.choice([key for key in spoilt if key not in keep])
        if isinstance(spoilt[key], dict) and spoilt[key] and self.dice.random() < 0.6:
            spoilt[key] = self.damage(spoilt[key], keep=())
        elif self.dice.random() < 0.2:
            del spoilt[key]
        else:
            spoilt[key] = self.dice.choice(DAMAGE)
        return spoilt
