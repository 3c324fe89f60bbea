"""Both endpoints of one database (our gateway, and a real PostgREST behind Supabase's key check), and their callers."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from orchestrator.worker_tokens import SigningKey, mint
from testbed.services.postgrest import EmbeddedPostgrest
from tests.process.web.builders import SECRET, Caller, ServerUnderTest

WRONG_SECRET = "not the project's secret, but as long as one"
SIGNING_KEY = SigningKey(ec.generate_private_key(ec.SECP256R1()), "imported-key")
OUTSIDERS_KEY = SigningKey(ec.generate_private_key(ec.SECP256R1()), "imported-key")
ENDPOINTS = ("gateway", "postgrest")


def public_jwk(key: SigningKey) -> dict[str, Any]:
    """The half that verifies, as a project publishes it in its JWKS."""
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.private.public_key(), as_dict=True)
    return {**public, "kid": key.kid, "alg": "ES256", "use": "sig", "key_ops": ["verify"]}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The two endpoints. `gateway` has the parts behind our gateway, which both share."""

    gateway: ServerUnderTest
    rest: EmbeddedPostgrest
    clients: Mapping[str, httpx.AsyncClient]

    def through(self, name: str, caller: Caller) -> Caller:
        """Return the same worker with calls through this endpoint."""
        return Caller(caller.id, caller.pool, caller.jti, caller.nonce, self.clients[name])


@dataclass(frozen=True, slots=True)
class Actors:
    """A worker that holds a task with a dependency, and others whose things it must not touch."""

    me: Caller
    victim: Caller
    gone: Caller
    mine: str  # the task I hold
    dep: str  # a complete task that mine depends on, with an output
    outsider: str  # a complete task that mine does not depend on, with an output
    theirs: str  # the task that the victim holds
    queued: str  # a task of the victim's pool
    secret: str  # a word in everything of the victim's
    term: int

    def fill(self, value: Any) -> Any:
        """Replace `{me}`, `{theirs}`… in a request by their values."""
        if isinstance(value, str):
            for name in ("me", "victim", "gone"):
                value = value.replace(f"{{{name}}}", getattr(self, name).id)
            for name in ("mine", "dep", "outsider", "theirs", "queued"):
                value = value.replace(f"{{{name}}}", getattr(self, name))
            return value.replace("{nonce}", self.me.nonce).replace("{victims_nonce}", self.victim.nonce)
        if isinstance(value, dict):
            return {self.fill(key): self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value

    def credentials(self, who: str) -> dict[str, str]:
        """The Authorization header of one of WHO."""
        token = _token(who, self)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _token(who: str, actors: Actors) -> str | None:
    me, now = actors.me, int(time.time())
    good = {"sub": me.id, "role": "gpu_worker", "jti": me.jti, "iat": now, "exp": now + 600, "iss": "orchestrator"}
    own = jwt.encode(good, SECRET, algorithm="HS256")

    def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **new: Any) -> str:
        claims = {name: value for name, value in (good | new).items() if value is not None}
        return jwt.encode(claims, key, algorithm=algorithm, headers=headers)

    public_pem = SIGNING_KEY.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    makers: dict[str, Any] = {
        "worker": lambda: own,
        "nobody": lambda: None,
        "anon": lambda: signed(sub=None, jti=None, role="anon"),
        "authenticated": lambda: signed(sub=str(uuid.uuid4()), jti=None, role="authenticated"),
        "authenticated as me": lambda: signed(role="authenticated"),
        "revoked": lambda: signed(jti="an older one"),
        "no jti": lambda: signed(jti=None),
        "empty jti": lambda: signed(jti=""),
        "a number as jti": lambda: signed(jti=1),
        "no sub": lambda: signed(sub=None),
        "no role": lambda: signed(role=None),
        "no such role": lambda: signed(role="nobody_known"),
        "role postgres": lambda: signed(role="postgres"),
        "the victim's sub": lambda: signed(sub=actors.victim.id),
        "the terminated": lambda: mint(SECRET, actors.gone.id, actors.gone.jti, now, 600),
        "expired": lambda: signed(iat=now - 7200, exp=now - 3600),
        "not yet": lambda: signed(nbf=now + 3600),
        "unsigned": lambda: jwt.encode(good, "", algorithm="none"),
        "no signature": lambda: own.rpartition(".")[0] + ".",
        "two parts": lambda: own.rpartition(".")[0],
        "wrong secret": lambda: signed(WRONG_SECRET),
        "service_role, wrong secret": lambda: signed(WRONG_SECRET, role="service_role"),
        "service_role, unsigned": lambda: jwt.encode({**good, "role": "service_role"}, "", algorithm="none"),
        "an outsider's ES256 key": lambda: mint(OUTSIDERS_KEY, me.id, me.jti, now, 600),
        "HS256 by the public key": lambda: _by_hand(good, public_pem),
        "tampered sub": lambda: _with_claims(own, {**good, "sub": actors.victim.id}),
        "tampered role": lambda: _with_claims(own, {**good, "role": "service_role"}),
        "tampered exp": lambda: _with_claims(signed(exp=now - 3600), good),
        "tampered alg": lambda: _with_header(own, {"alg": "none", "typ": "JWT"}),
        "a key of its own in the header": lambda: mint_with_jwk(good),
        "nonsense": lambda: "nonsense",
        "a long one": lambda: "a." * 5_000,
    }  # fmt: skip
    token: str | None = makers[who]()
    return token


def _by_hand(claims: Mapping[str, Any], secret: bytes) -> str:
    """HS256 with a PEM as the secret, which PyJWT will not do."""
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    body = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'imported-key'})}.{_part(claims)}"
    return f"{body}.{jwt.utils.base64url_encode(algorithm.sign(body.encode(), secret)).decode()}"


def mint_with_jwk(claims: Mapping[str, Any]) -> str:
    """Signed by an outsider's key that the header brings along."""
    return jwt.encode(
        dict(claims), OUTSIDERS_KEY.private, algorithm="ES256", headers={"jwk": public_jwk(OUTSIDERS_KEY)}
    )


def _part(value: Mapping[str, Any]) -> str:
    return jwt.utils.base64url_encode(json.dumps(value).encode()).decode()


def _with_claims(token: str, claims: Mapping[str, Any]) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{_part(claims)}.{signature}"


def _with_header(token: str, header: Mapping[str, Any]) -> str:
    _, claims, signature = token.split(".")
    return f"{_part(header)}.{claims}.{signature}"
