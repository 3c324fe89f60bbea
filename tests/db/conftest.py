"""Over which transports the tests of the database run."""

from pathlib import Path
from zlib import crc32

import pytest

HERE = Path(__file__).parent
# Files of rules that SQL alone decides; so do all files of diagnostics/.
RULES = ("test_queue_", "test_store_workers", "test_scaling_", "test_webhooks", "test_schedules", "test_cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What SQL alone decides runs over one of the transports; `-m other_transport` runs it over the other.

    The other tests run over both.
    """
    for item in items:
        if not isinstance(item, pytest.Function) or not item.path.is_relative_to(HERE) or "db" not in item.fixturenames:
            continue
        if item.path.parent.name == "diagnostics" or item.path.name.startswith(RULES):
            transport = str(item.callspec.params["db"])
            case = f"{item.path.name} {item.originalname} {item.callspec.id.replace(transport, '', 1)}"
            if transport != ("direct", "supabase")[crc32(case.encode()) % 2]:  # whichever tests a run has
                item.add_marker(pytest.mark.other_transport)
