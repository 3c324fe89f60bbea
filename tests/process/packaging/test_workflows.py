"""The workflows pass the linter that the locked requirements have."""

import subprocess
import sys
from pathlib import Path

from tests.process.packaging.conftest import ROOT

LINT_TIMEOUT_S = 60.0


def test_no_workflow_has_a_known_weakness() -> None:
    """As zizmor finds them without network access."""
    command = (str(Path(sys.executable).with_name("zizmor")), "--offline", "--quiet", str(ROOT / ".github"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LINT_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
