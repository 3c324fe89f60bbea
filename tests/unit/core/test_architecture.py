"""What the documents say about the core."""

from pathlib import Path

from orchestrator.core.stages import BRING_UP, STAGE_SPECS
from orchestrator.core.state_diagram import LABELS, mermaid
from orchestrator.core.states import TRANSITIONS, State

ROOT = Path(__file__).parents[3]


def test_the_state_diagram_is_the_tables() -> None:
    """ARCHITECTURE.md shows what `python -m orchestrator.core.state_diagram` draws."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert f"```mermaid\n{mermaid()}\n```" in text
    assert len(text.splitlines()) <= 150


def test_every_transition_has_a_meaning() -> None:
    """A new transition needs a label, and nothing leaves `terminated`."""
    assert set(LABELS) == TRANSITIONS
    assert not [pair for pair in TRANSITIONS if pair[0] is State.TERMINATED]


def test_every_stage_has_a_deadline_a_code_and_a_party_to_wait_for() -> None:
    """No stage can be waited in without an end."""
    assert len(STAGE_SPECS) == len(BRING_UP)
    assert all(spec.deadline_s > 0 for spec in BRING_UP)
