"""Names that other programs define: GPU types, clouds, buckets, regions, keys, addresses and log levels."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, SecretStr

from orchestrator.config.errors import shown
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.gpu_profiles import PROFILES

VENDORS = frozenset({"nvidia", "amd", "tesla"})  # RunPod's ids begin with one of these
VAGUE = frozenset({"nvidia", "geforce", "generation"})  # words that people leave out
OTHER_NAMES = {"WARN": "WARNING", "TRACE": "DEBUG", "CRITICAL": "ERROR", "FATAL": "ERROR"} | {
    "SECURE_CLOUD": "SECURE", "SECURE CLOUD": "SECURE", "COMMUNITY_CLOUD": "COMMUNITY", "COMMUNITY CLOUD": "COMMUNITY",
}  # fmt: skip
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)
MAX_PREFIX_BYTES = 120  # of S3_PREFIX: a store takes 1,024 bytes for a key, and worker/rules.py leaves as many
REGION = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::\d{1,5})?/)?[a-z0-9]+(?:[._/-]{1,2}[a-z0-9]+)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
LISTENED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?", re.ASCII)
OPTIONS = r"/env\s|\s-|[$&;]"  # of a program whose path is given, or of a shell
ZONE = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d[a-f]", re.ASCII)


def _capitals(value: object) -> object:
    """Return a name in capitals, as some tools write the names that others write small."""
    return OTHER_NAMES.get(value.upper(), value.upper()) if isinstance(value, str) else value


def _small(value: object) -> object:
    """Return a name in small letters."""
    return value.lower() if isinstance(value, str) else value


def gpu_types(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return RunPod's ids of these GPU types. Raises ValueError for a name that may be several."""
    return tuple(map(_gpu_type, names))


def _gpu_type(name: str) -> str:
    """Return RunPod's id of a GPU type that is named as people or the console name it, such as RTX 4090.

    A name that nothing here resembles stays: `doctor` compares it with RunPod's catalogue.
    """
    words = _words(name)
    found = [known for known in PROFILES if words <= _words(known)]
    same = [known for known in found if _words(known) - VAGUE == words - VAGUE]
    if len(same or found) > 1 and name not in found and not words & VENDORS:
        raise ValueError(f"{shown(name)} may be {' or '.join(found)}: write one of them")
    chosen = same or found
    return chosen[0] if len(chosen) == 1 and name not in found else name


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[\s_-]+", name.strip().casefold()))


def _s3_bucket(value: str) -> str:
    name = value.removeprefix("s3://").removeprefix("arn:aws:s3:::").rstrip("/")
    if "://" in name or name.startswith("arn:"):
        raise ValueError("is a URL or an ARN: give the bucket's name alone, and set S3_ENDPOINT_URL to the service")
    if "/" in name:
        raise ValueError("names a folder in a bucket: give the bucket alone, and set S3_PREFIX to the folder")
    if not BUCKET.fullmatch(name):
        raise ValueError("is not the name of a bucket: 3 to 63 letters, digits, '.', '-' and '_'")
    return name


def _s3_prefix(value: str) -> str:
    """Refuse a prefix that leaves too little of a key's 1,024 bytes for the names of outputs."""
    if len(value.encode("utf-8", "replace")) > MAX_PREFIX_BYTES:
        raise ValueError(f"has more than {MAX_PREFIX_BYTES} bytes")
    if not value.isprintable():
        raise ValueError("contains a control character")
    if "://" in value:
        raise ValueError("is a URL: give only what follows the bucket's name, such as logs")
    if not {".", ".."}.isdisjoint(value.split("/")):
        raise ValueError("has a part '.' or '..', which means another key to some programs: remove it")
    return value


def _region(value: str) -> str:
    name = value.lower()
    if not REGION.fullmatch(name):
        raise ValueError("is not the name of a region such as eu-central-1 (auto for R2)")
    if ZONE.fullmatch(name):
        raise ValueError(f"is an availability zone: its region is {name[:-1]}")
    return name


def _key_id(value: str) -> str:
    """Refuse a key that no HTTP header can carry."""
    if value.lower().startswith("bearer "):
        raise ValueError("begins with the word Bearer: give the key alone")
    if re.search(r"[^!-~]", value):
        raise ValueError("contains a space, a line end, or a character beyond ASCII, which no key has")
    return value


def _key(value: SecretStr) -> SecretStr:
    return SecretStr(_key_id(value.get_secret_value()))


def _image(value: str) -> str:
    """Refuse what no registry could have: pods would be rented, and pull nothing."""
    if not IMAGE.fullmatch(value):
        raise ValueError(
            "is not the name of an image such as ghcr.io/team/image:1.0 (small letters, no spaces, no https://)"
        )
    return value


def _mount_path(value: str) -> str:
    if not value.startswith("/") or ":" in value or not value.strip("/"):
        raise ValueError("is not the path of a directory on the pod such as /workspace")
    return value


def _python(value: str) -> str:
    """Refuse what is no single program: no shell reads it on the pod. A path may have spaces."""
    if re.search(OPTIONS if value.startswith("/") else r"[\s~$&;]|\A-", value):
        raise ValueError("is not one program: give its name or its path, such as /opt/venv/bin/python, without options")
    return value


def _host(value: str) -> str:
    """Return an address to listen at. `*`, as some programs write it, means every address."""
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else "0.0.0.0" if value == "*" else value  # noqa: S104  see HOST
    if "://" in host or "/" in host:
        raise ValueError("is a URL: give the address alone, such as 0.0.0.0")
    if host.count(":") == 1 or "]" in host:
        raise ValueError("has a port: set PORT to it, and HOST to the address alone")
    if not LISTENED.fullmatch(host):
        raise ValueError("is not one address such as 0.0.0.0 or ::")
    return host


LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_capitals)]
PolicyName = Annotated[ScalingPolicy, BeforeValidator(_small)]
CloudKind = Annotated[Literal["SECURE", "COMMUNITY"], BeforeValidator(_capitals)]
Bucket = Annotated[str, AfterValidator(_s3_bucket)]
Prefix = Annotated[str, AfterValidator(_s3_prefix)]
Region = Annotated[str, AfterValidator(_region)]
Key = Annotated[SecretStr, AfterValidator(_key)]
KeyId = Annotated[str, AfterValidator(_key_id)]
Image = Annotated[str, AfterValidator(_image)]
MountPath = Annotated[str, AfterValidator(_mount_path)]
Program = Annotated[str, AfterValidator(_python)]
Host = Annotated[str, AfterValidator(_host)]
