"""The interfaces of the loop to the outside world: five ports, each with its errors.

A port that cannot answer raises; it never returns an empty answer for "I don't know". `Unavailable` means that the
other side may or may not have acted.

    database.py  the transport to the SQL functions
    store.py     the rows of the fleet, over the transport
    clusters.py  the rows of Slurm clusters, over the transport
    cloud.py     the GPU provider
    shell.py     SSH to pods
    blobs.py     the bucket
"""

from orchestrator.ports.blobs import (
    BlobRefused,
    Blobs,
    NoBucket,
    NotFound,
    ObjectExists,
)
from orchestrator.ports.cloud import (
    ApiAuth,
    BadSpec,
    Bill,
    Cloud,
    NoBalance,
    NoCapacity,
    NotSent,
    QuotaExceeded,
    RateLimited,
)
from orchestrator.ports.clusters import ClusterRows
from orchestrator.ports.database import (
    ASKS_CHANNEL,
    FLEET_CHANNEL,
    HEARTBEATS,
    TASKS_CHANNEL,
    ApiCalls,
    BadArgument,
    BadToken,
    DatabaseAuth,
    Db,
    EncodedJson,
    EncodedTasks,
    LostRace,
    MissingRight,
    NotLeader,
    OverBudget,
    SchemaMismatch,
    TooManyConnections,
    UnknownWorker,
    WorkerDb,
)
from orchestrator.ports.errors import (
    PortError,
    Unavailable,
)
from orchestrator.ports.shell import (
    AuthFailed,
    Completed,
    ConnectionRefused,
    HostKeyChanged,
    NoBanner,
    NotSsh,
    Session,
    SessionPool,
    Shell,
)
from orchestrator.ports.store import (
    LEAD_EVERY_S,
    LEASE_TTL_S,
    DatabaseHalf,
    Lease,
    LogRange,
    PoolHistory,
    StageAttempt,
    Store,
)

__all__ = [
    "ASKS_CHANNEL",
    "FLEET_CHANNEL",
    "HEARTBEATS",
    "LEAD_EVERY_S",
    "LEASE_TTL_S",
    "TASKS_CHANNEL",
    "ApiAuth",
    "ApiCalls",
    "AuthFailed",
    "BadArgument",
    "BadSpec",
    "BadToken",
    "Bill",
    "BlobRefused",
    "Blobs",
    "Cloud",
    "ClusterRows",
    "Completed",
    "ConnectionRefused",
    "DatabaseAuth",
    "DatabaseHalf",
    "Db",
    "EncodedJson",
    "EncodedTasks",
    "HostKeyChanged",
    "Lease",
    "LogRange",
    "LostRace",
    "MissingRight",
    "NoBalance",
    "NoBanner",
    "NoBucket",
    "NoCapacity",
    "NotFound",
    "NotLeader",
    "NotSent",
    "NotSsh",
    "ObjectExists",
    "OverBudget",
    "PoolHistory",
    "PortError",
    "QuotaExceeded",
    "RateLimited",
    "SchemaMismatch",
    "Session",
    "SessionPool",
    "Shell",
    "StageAttempt",
    "Store",
    "TooManyConnections",
    "Unavailable",
    "UnknownWorker",
    "WorkerDb",
]
