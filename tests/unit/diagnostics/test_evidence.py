"""The text of an attempt's evidence shows its most important facts."""

from orchestrator.diagnostics.evidence import LONGEST_ERROR, evidence_text


def test_a_long_error_keeps_its_begin_and_its_end() -> None:
    """A failed set-up command says last why it failed."""
    pip = "Collecting a package\n" * 60 + "ERROR: No matching distribution found for no-such-package"
    seen = evidence_text({"error": f"the set-up command ended with 1: {pip}", "exit_status": 1})
    assert seen.startswith("the set-up command ended with 1: ")
    assert "ERROR: No matching distribution found for no-such-package, exit_status 1" in seen
    assert len(seen) <= LONGEST_ERROR + len(", exit_status 1")


def test_values_are_shown_in_plain_words() -> None:
    """Not those of Python."""
    seen = evidence_text({"adopted": False, "ecc_uncorrected": [None, 0], "used_mib": [2]})
    assert seen == "adopted no, ecc_uncorrected unknown, 0, used_mib 2"
