"""Whether a file contains a private key or another credential, by its content: names of files prove nothing."""

import binascii
import re

# A header with the beginning of a key: as lines, or as one line with escaped line breaks.
KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[\s\"'+,()]|\\r|\\n|[A-Za-z-]{1,40}: [^\r\n\\]{0,200}(?=[\r\n\\])){1,80}[A-Za-z0-9+/]{32}"
)
# The first characters of a key in base64, whatever surrounds its lines: OpenSSH's, PKCS#8 and PKCS#1 of RSA, PKCS#8 and
# SEC 1 of an elliptic curve, PKCS#8 of Ed25519, PKCS#8 with a passphrase.
KEY_BODY = re.compile(
    rb"(?:b3BlbnNzaC1rZXktdjE|MII[A-Za-z0-9+/]{3}IBADANBgkqhkiG9w0BAQEFAASC|MII[A-Za-z0-9+/]{3}IBAAKC|MIG[A-Za-z0-9+/]AgEAM"
    rb"|MHcCAQEEI|MIGkAgEBBD|MC4CAQAwBQYDK2VwBCIEI|MI[A-Za-z0-9+/]{2,8}BgkqhkiG9w0BBQ0w)[A-Za-z0-9+/]{24}"
)
KEY_MARKS = (
    b"b3BlbnNzaC1rZXktdjE", b"BgkqhkiG9w0BAQEFAASC", b"IBAAKC", b"AgEAM", b"MHcCAQEEI", b"MIGkAgEBBD",
    b"MC4CAQAwBQYDK2VwBCIEI", b"BgkqhkiG9w0BBQ0w",
)  # fmt: skip  # one of them is in every such key, and looking for them takes a tenth of the time
KEY_DER = re.compile(rb"0(?:[\x20-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01\x03](?:0.|\x02\x82|\x04.)", re.DOTALL)
AWS_NAMES = (b"aws_secret_access_key", b"AWS_SECRET_ACCESS_KEY", b"ecretAccessKey")  # the last one is of its JSON
AWS_SECRET = re.compile(
    rb"(?:%s|%s|%s)(?:\\?[\"'])?\s{0,9}[=:]\s{0,9}(?:\\?[\"'])?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])" % AWS_NAMES
)
IN_BASE64 = re.compile(rb"LS0tLS1CRUdJT[A-Za-z0-9+/]{47}")  # 45 bytes that begin with a PEM header
JWK = re.compile(rb"\"kty\"\s{0,9}:\s{0,9}\"")
JWK_SECRET = re.compile(rb"\"[dk]\"\s{0,9}:\s{0,9}\"[A-Za-z0-9_-]{20,}\"")
OTHER_KEYS = (b"PuTTY-User-Key-File-", b"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----", b"AGE-SECRET-KEY-1")


def kind_of_key(content: bytes) -> str | None:
    """Return what makes a file a credential; None if nothing is known that does."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16, as PowerShell writes files
        content = content.replace(b"\0", b"")
    is_key = (
        content.startswith(OTHER_KEYS)
        or KEY_DER.match(content)
        or (b"PRIVATE KEY" in content and KEY.search(content))
        or (any(mark in content for mark in KEY_MARKS) and KEY_BODY.search(content))
    )
    is_encoded = any(b"PRIVATE KEY" in binascii.a2b_base64(found) for found in IN_BASE64.findall(content))
    if is_key or is_encoded or (JWK.search(content) and JWK_SECRET.search(content)):
        return "it contains a private key"
    if b"client-key-data:" in content and b"kind: Config" in content:
        return "credentials of a Kubernetes cluster"
    if any(name in content for name in AWS_NAMES) and AWS_SECRET.search(content):
        return "it contains a secret key of AWS"
    return None
