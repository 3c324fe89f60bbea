"""Each operation with random requests, made from the document: each answer is one that the document describes."""

import asyncio
import itertools
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from orchestrator.core.api_tokens import ENV_ADMIN
from orchestrator.web.api.routes import BASE, OPERATIONS
from orchestrator.web.token_buckets import Buckets, Rate
from tests.process.web.api_rig import ADMIN, ApiRig
from tests.process.web.builders import done

EXAMPLES = 6  # of each kind for each operation
STREAMS = {"followTask"}  # an existing task's stream goes on; tests/process/web/test_api_events.py follows it
BEYOND_SCHEMAS: list[Any] = [positive_data_acceptance]  # no schema says which tasks exist, and which pages there are
# Requests that the document allows, and requests that it does not, where it leaves anything to be wrong.
REQUESTS = [(one.name, GenerationMode.POSITIVE) for one in OPERATIONS] + [
    (one.name, GenerationMode.NEGATIVE) for one in OPERATIONS if one.body or one.query.model_fields
]
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(("name", "mode"), REQUESTS, ids=lambda part: str(getattr(part, "value", part)))
async def test_every_answer_is_one_that_the_document_describes(rig: ApiRig, name: str, mode: GenerationMode) -> None:
    """By status, type, headers and schema. Every second request names a task, a worker and a cluster that exist."""
    rig.api.requests, rig.api.bytes = Buckets(Rate(1e9, 1e9)), Buckets(Rate(1e12, 1e12))
    worker, known = await rig.worker(), await rig.submit()
    await worker.claim()
    await worker.call("worker_complete", **done(known))
    cluster = f"c-{known[:8]}"
    await rig.rows.clusters.create(cluster, rig.pool, nodes=1, actor="test")
    change = (await rig.rows.task_changes.start(ENV_ADMIN, "cancel", {"task_type": "of-nobody"}, key=None))["id"]
    document = (await rig.client.get(f"{BASE}/openapi.json")).json()
    del document["security"]  # each request has the token: test_api_access.py tries others
    turns = itertools.cycle((True, False))

    def named(case: Case[Any]) -> Case[Any]:
        """The case, every second time with ids that exist."""
        if next(turns) and name not in STREAMS:
            ids: dict[str, Any] = {"task_id": known, "worker_id": worker.id, "change_id": change}
            ids |= {"project": rig.rows.fleet, "app_instance_id": cluster}
            case.path_parameters = {one: ids[one] for one in case.path_parameters or {}}
        return case

    def fuzz() -> None:
        loaded = schemathesis.openapi.from_dict(document)
        every = [found.ok() for found in loaded.get_all_operations() if isinstance(found, Ok)]
        (operation,) = [one for one in every if one.definition.raw["operationId"] == name]

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            headers = {"Authorization": f"Bearer {ADMIN}"}
            where = f"{rig.url}{BASE}"
            answer = named(case).call(where, headers=headers, timeout=40)
            # A body with too many values is refused before it is looked at.
            is_too_large = answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            beyond = [*BEYOND_SCHEMAS, *([negative_data_rejection] if is_too_large else [])]
            case.validate_response(answer, headers=headers, excluded_checks=beyond)

        ask()

    await asyncio.to_thread(fuzz)
