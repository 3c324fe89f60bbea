"""Whether pods and bucket are on different continents; what is not known is not far."""

import pytest

from orchestrator.core.places import are_far, bucket_place

RUNPODS_S3 = "https://s3api-eu-ro-1.runpod.io/"


@pytest.mark.parametrize(
    ("center", "endpoint_url", "region", "far"),
    [
        ("US-TX-3", None, "us-east-1", False),
        ("CA-MTL-1", None, "us-east-1", False),
        ("EU-RO-1", None, "us-east-1", True),
        ("EUR-IS-1", None, "eu-central-1", False),
        ("AP-JP-1", None, "ap-southeast-2", True),
        ("OC-AU-1", None, "ap-southeast-2", False),
        ("EU-RO-1", RUNPODS_S3, "us-east-1", False),
        ("US-KS-2", RUNPODS_S3, "EU-RO-1", True),
        ("EU-RO-1", "https://s3.eu-west-1.amazonaws.com", "us-east-1", True),
        ("EU-RO-1", "https://x.r2.cloudflarestorage.com", "us-east-1", False),
        ("EU-RO-1", "http://127.0.0.1:9000", "us-east-1", False),
        ("XX-1", None, "us-east-1", False),
        (None, None, "us-east-1", False),
    ],
)
def test_only_a_known_ocean_counts(center: str | None, endpoint_url: str | None, region: str, far: bool) -> None:
    """A service that is neither AWS nor RunPod may call its region anything."""
    assert are_far(center, bucket_place(endpoint_url, region)) is far
