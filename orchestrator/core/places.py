"""Where data centres and buckets are, by their names: enough to see that bytes cross an ocean (guard U14)."""

NORTH_AMERICA, EUROPE, ASIA, OCEANIA = "North America", "Europe", "Asia", "Oceania"
# The first part of a name of RunPod (EU-RO-1) or AWS (eu-west-1).
CONTINENTS = {
    "us": NORTH_AMERICA, "ca": NORTH_AMERICA, "mx": NORTH_AMERICA, "eu": EUROPE, "eur": EUROPE, "ap": ASIA,
    "sea": ASIA, "oc": OCEANIA, "sa": "South America", "af": "Africa",
}  # fmt: skip
AUSTRALIAN = ("ap-southeast-2", "ap-southeast-4", "ap-southeast-6")  # AWS counts them to Asia
AWS, RUNPOD = ".amazonaws.com", ".runpod.io"


def continent(place: str | None) -> str | None:
    """Return the continent of a data centre or region, or None if its name does not show it."""
    name = (place or "").lower()
    return OCEANIA if name in AUSTRALIAN else CONTINENTS.get(name.partition("-")[0])


def bucket_place(endpoint_url: str | None, region: str) -> str | None:
    """Return the region or data centre of a bucket. None: another service, whose region may be any word."""
    host = (endpoint_url or f"https://s3{AWS}").partition("//")[2].partition("/")[0].partition(":")[0].lower()
    if host.endswith(RUNPOD):  # s3api-eu-ro-1.runpod.io
        return host.removesuffix(RUNPOD).removeprefix("s3api-").upper()
    return region if host.endswith(AWS) else None


def are_far(one: str | None, other: str | None) -> bool:
    """Whether both are known, and on different continents."""
    here, there = continent(one), continent(other)
    return here is not None and there is not None and here != there
