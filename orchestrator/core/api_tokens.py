"""Tokens of the API: who calls, and what that caller may do.

A token is `gpo_` and 43 characters of base64url: a random number of 256 bits. The database stores its SHA-256.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

PREFIX = "gpo_"
RANDOM_BYTES = 32
TOKEN_PATTERN = re.compile(r"gpo_[A-Za-z0-9_-]{43}")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MAX_TENANT_CHARS = 200


class TokenScope(StrEnum):
    """What a token may do. `admin` includes all others, and `operate` includes `read`."""

    SUBMIT = "submit"  # submit tasks, and cancel and retry them
    READ = "read"
    OPERATE = "operate"  # cancel, retry, pause, terminate workers
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The holder of a valid token. `pools` and `tenant` restrict it to such tasks; None does not restrict it."""

    name: str
    scopes: frozenset[TokenScope]
    pools: frozenset[str] | None = None
    tenant: str | None = None
    expires_at: datetime | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "TokenHolder":
        """From the answer of `fleet_token_use`."""
        ends, pools = row["expires_at"], row["pools"]
        return cls(
            row["name"],
            frozenset(map(TokenScope, row["scopes"])),
            None if pools is None else frozenset(pools),
            row["tenant"],
            None if ends is None else datetime.fromisoformat(ends),
        )

    def may(self, scopes: Collection[TokenScope]) -> bool:
        """Whether it has one of these scopes."""
        own = set(self.scopes)
        if TokenScope.OPERATE in own:
            own.add(TokenScope.READ)
        return TokenScope.ADMIN in own or not own.isdisjoint(scopes)

    def sees(self, pool: str | None, tenant: str | None = None) -> bool:
        """Whether a task of this pool and tenant exists for it."""
        return (self.pools is None or pool in self.pools) and (self.tenant is None or tenant == self.tenant)

    def concerned(self, pools: Collection[str] | None) -> bool:
        """Whether something that makes tasks of these pools wait (None: of every pool) is for it.

        What holds no pool up, such as a pod that goes on costing money, is for those who see the whole fleet.
        """
        return self.pools is None or pools is None or any(map(self.sees, pools))

    def pools_of(self, pool: str | None) -> list[str] | None:
        """The argument `p_pools` of SQL functions, for one pool or for every pool that it sees."""
        if pool is None:
            return None if self.pools is None else sorted(self.pools)
        return [pool] if self.sees(pool, self.tenant) else []

    def restriction(self) -> dict[str, Any]:
        """The argument `p_scope` of SQL functions."""
        return {"pools": None if self.pools is None else sorted(self.pools), "tenant": self.tenant}


ENV_ADMIN = TokenHolder("env:admin", frozenset({TokenScope.ADMIN}))  # the holder of ADMIN_TOKEN
ENV_VIEWER = TokenHolder("env:viewer", frozenset({TokenScope.READ}))  # the holder of VIEWER_TOKEN


def hash_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()
