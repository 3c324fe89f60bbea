"""Which values are secrets: by the name of their variable, or by their form."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False  # typing is not imported on the pod: it would take a tenth of the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# A variable with such a name is a secret.
SECRET_NAME = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|TOKEN(?!IZ)|API_?KEY|ACCESS_?KEY|KEY$|COOKIE|WEBHOOK|BEARER"
    r"|CONN(?:ECTION)?_?STR|MNEMONIC|(?<!BY)(?<!COM)PASS$"
    r"|(?:^|_)(?:KEYS?|PASS|PWD|PW|PAT|AUTH|OAUTH2?|CREDS?|DSN|SALT|JWT|SAS|SIGNATURE|SIGNING|PRIVATE)(?:_|\d|$)",
    re.IGNORECASE,
)
PUBLIC_NAME = re.compile(r"(?:^|_)PUBLIC(?:_\w+)?_KEY|MAX_\w*TOKENS|TOKENS_(?:LIMIT|COUNT|PER)", re.IGNORECASE)
# Known kinds of tokens. None of them begins within a word.
TOKEN = re.compile(
    r"(?<![\w.-])(?:(?:hf_|sk-|[rs]k_live_|sk_test_|gh[oprsu]_|github_pat_|glpat-|xox[abep]-|xapp-|rpa_|npm_|pypi-|AIza|ya29\."
    r"|SG\.|dop_v1_|AKIA|ASIA|nvapi-|r8_|gsk_|xai-|pplx-|whsec_|sb_secret_|sbp_|dckr_pat_|hvs\.|glsa_|tskey-|shpat_)"
    r"[\w.-]{12,}|eyJ[\w-]{8,}\.[\w.-]{16,})"
)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)
# The second one is for a password that was not percent-encoded; what follows the colon may be a port.
URL_PASSWORDS = (
    re.compile(r"://([^\s/:@]*):([^\s/@]+)@"),
    re.compile(r"://([^\s/:@]*):(?!\d{1,5}[/?#])(\S{1,1000})@"),
)


def secrets_of(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets among environment variables.

    A value is a secret if its variable's name says so, or if it is a private key. So are the passwords of URLs and the
    known kinds of tokens within every value, and such members of a value that is JSON, at any depth.
    """
    for name, value in variables.items():
        is_named = SECRET_NAME.search(name) and not PUBLIC_NAME.search(name)
        if is_named or PRIVATE_KEY.fullmatch(value.strip()):
            yield value
        yield from secrets_in(value)
        if value.lstrip().startswith(("{", "[")):
            try:
                content = json.loads(value)
            except (ValueError, RecursionError):
                continue
            yield from _secrets_of_json(content)


def _secrets_of_json(content: Any) -> Iterator[str]:
    left = [("", content)]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((name, one) for one in value)
        elif isinstance(value, str):
            yield from secrets_of({name: value})


def secrets_in(text: str) -> Iterator[str]:
    """Yield what has the form of a secret within any text: passwords of URLs, and known kinds of tokens."""
    yield from passwords(text)
    yield from TOKEN.findall(text)


def passwords(text: str) -> Iterator[str]:
    """Yield the passwords of the URLs in a text, as written and decoded, unless one equals the user's name."""
    for user, password in (found for form in URL_PASSWORDS for found in form.findall(text)):
        if password != user:
            yield password
            decoded = re.sub(rb"%([0-9A-Fa-f]{2})", lambda code: bytes((int(code[1], 16),)), raw_bytes(password))
            yield decoded.decode("utf-8", "replace")


def raw_bytes(text: str) -> bytes:
    """Return the bytes of a variable's text, which has lone surrogates if the variable is not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
