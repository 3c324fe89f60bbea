"""The cause of late logs is told in words."""

import pytest

from orchestrator.diagnostics.log_delay import delay_of

LOGS = f".orchestrator/run/{'0a' * 16}/logs"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (f"Unavailable: list {LOGS}: SFTPConnectionLost: Connection not open", "the SSH connection broke"),
        (f"Unavailable: read {LOGS}/handler.log: ConnectionResetError: [Errno 104]", "the SSH connection broke"),
        (f"Unavailable: list {LOGS}: no answer within 5 s", "the pod does not answer in time"),
        ("TimeoutError: ", "the pod does not answer in time"),
        (f"Unavailable: list {LOGS}: more than 4096 entries", "list logs: more than 4096 entries"),
        ("HostKeyChanged: another machine answers", "another machine answers"),
        ("no SSH key: it is not set", "no SSH key: it is not set"),
    ],
)
def test_no_name_of_the_code_and_no_path_is_shown(error: str, said: str) -> None:
    """The record in the database has them."""
    assert delay_of(error) == said
