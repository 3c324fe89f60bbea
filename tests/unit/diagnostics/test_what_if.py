"""What a replay says: how far to trust it, and when it recommends other settings."""

import pytest

from orchestrator.core.economics.recorded import Waits
from orchestrator.core.economics.what_if import FleetFigures
from orchestrator.diagnostics.what_if import Judged, advice, trust

YOURS = Judged("your settings", 63.0, 1_000.0, 71.0, 0)


def other(cost: float, waited_s: float, p95_s: float, unrun: int = 0) -> Judged:
    return Judged("learned", cost, waited_s, p95_s, unrun)


def figures(usd: float, boots: int, p95_s: float | None) -> FleetFigures:
    return FleetFigures(usd, boots, Waits(1.0, p95_s, 99.0, 0))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (other(41, 500, 38), "Recommendation: learned. It costs 35% less; its tasks wait 50% less in all; one task in"),
        (other(41, 500, 71), "Recommendation: learned. It costs 35% less"),
        (other(70, 1_500, 80), "Recommendation: keep your settings. Learned costs 11% more"),
        (other(63, 1_000, 71), "Recommendation: keep your settings. Learned costs as much"),
        (other(70, 1_000.5, 71), "Recommendation: keep your settings. Learned costs 11% more"),
        (other(41, 1_500, 80), "A trade-off: learned costs 35% less; its tasks wait 50% more in all"),
        (other(41, 500, 80), "A trade-off: learned costs 35% less; its tasks wait 50% less in all; one"),
        (other(70, 500, 38), "A trade-off: learned costs 11% more"),
        (other(41, 1_000.5, 71), "No trade-off: learned costs 35% less; its tasks wait as long in all"),
        (other(41, 0, 0, unrun=7), "No recommendation: learned leaves 7 tasks more undone than your settings."),
    ],
)  # fmt: skip
def test_other_settings_are_recommended_only_if_both_dollars_and_waits_are_less(after: Judged, words: str) -> None:
    """A difference of less than a per cent counts as none."""
    assert advice(YOURS, after).startswith(words)


def test_settings_keep_their_names_at_the_begin_of_a_sentence() -> None:
    named = Judged("MAX_ACTIVE_GPUS=1", 70.0, 2_000.0, 80.0, 0)
    assert " MAX_ACTIVE_GPUS=1 costs 11% more" in advice(YOURS, named)


def test_the_first_line_has_the_error_of_each_figure_in_per_cent() -> None:
    assert trust(figures(66.0, 10, 70.0), figures(60.0, 12, 71.0)) == (
        "A replay of your settings gives $66.00 where $60.00 was recorded (+10 %), 10 boots for 12 (-17 %) and a p95 "
        "wait of 1m10s for 1m11s (-1 %), so trust the rest as far as that."
    )
    assert "gives 10 boots for 12 (-17 %), so" in trust(figures(1.0, 10, None), figures(0.0, 12, None))
    assert trust(figures(1.0, 1, None), figures(0.0, 0, None)).startswith("The records have no costs and no waits")
