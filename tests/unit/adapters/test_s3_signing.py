"""Our presigned URLs are boto3's, query parameter by query parameter."""

import functools
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import pytest
from botocore.config import Config

from orchestrator.adapters.s3 import S3Blobs

KEYS = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
CHECKSUM = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
CHECKSUM_HEADER = "x-amz-checksum-sha256"
ONCE = {"If-None-Match": "*"}
PART = {"UploadId": "a/b+c=&d", "PartNumber": 17}


@functools.cache  # boto3 reads its models for each client, which takes longer than all these tests
def clients(endpoint: str | None) -> tuple[Any, S3Blobs]:
    """Return boto3's client of this endpoint, and ours."""
    theirs = boto3.session.Session().client(
        "s3", endpoint_url=endpoint, aws_access_key_id=KEYS[0], aws_secret_access_key=KEYS[1], region_name="eu-west-1",
        config=Config(
            signature_version="s3v4", s3={"addressing_style": "path" if endpoint else "auto"},
            request_checksum_calculation="when_required", response_checksum_validation="when_required",
        ),
    )  # fmt: skip
    return theirs, S3Blobs(endpoint, *KEYS, "bucket", "some/prefix", "eu-west-1")


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000"])
@pytest.mark.parametrize("key", ["outputs/1/2-ab/film.mp4", "outputs/1/2-ab/a b/\N{SNOWMAN}~+%2F&=.bin"])
@pytest.mark.parametrize(
    ("operation", "asked", "method", "query", "headers"),
    [
        ("get_object", {}, "GET", {}, {}),
        ("head_object", {"ChecksumMode": "ENABLED"}, "HEAD", {}, {"x-amz-checksum-mode": "ENABLED"}),
        (
            "put_object",
            {"IfNoneMatch": "*", "ContentLength": 5, "ContentType": "text/plain", "ChecksumSHA256": CHECKSUM},
            "PUT",
            {},
            {"If-None-Match": "*", "Content-Length": "5", "Content-Type": "text/plain", CHECKSUM_HEADER: CHECKSUM},
        ),
        ("upload_part", PART, "PUT", {"uploadId": "a/b+c=&d", "partNumber": "17"}, {}),
        ("complete_multipart_upload", {"UploadId": "u", "IfNoneMatch": "*"}, "POST", {"uploadId": "u"}, ONCE),
        ("abort_multipart_upload", {"UploadId": "u"}, "DELETE", {"uploadId": "u"}, {}),
    ],
)  # fmt: skip
def test_a_url_is_the_one_that_boto3_makes(
    endpoint: str | None, key: str, operation: str, asked: dict[str, Any], method: str, query: Any, headers: Any
) -> None:
    """With a custom endpoint and without, whatever the key holds."""
    client, blobs = clients(endpoint)
    today = datetime.now(UTC)
    for _ in range(3):  # the second may turn in between
        theirs = client.generate_presigned_url(
            operation, Params={"Bucket": "bucket", "Key": f"some/prefix/{key}", **asked}, ExpiresIn=300
        )
        ours = blobs.sign(method, key, expires_s=300, query=query, headers=headers)
        if _parts(ours) == _parts(theirs):
            break
    assert _parts(ours) == _parts(theirs)
    assert any(f"{day:%Y%m%dT}" in ours for day in (today, datetime.now(UTC)))


def _parts(url: str) -> tuple[str, str, dict[str, str]]:
    parts = urlsplit(url)
    return parts.netloc, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))
