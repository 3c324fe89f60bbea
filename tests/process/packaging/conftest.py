"""The wheel, built from this checkout, and an environment that has it and the locked requirements and nothing else."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
STEP_TIMEOUT_S = 240.0
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with the wheel in it."""

    directory: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.directory / "bin" / "python"

    @property
    def program(self) -> Path:
        """The console script."""
        return self.directory / "bin" / "orchestrator"

    def run(self, *command: str | Path, **environment: str) -> str:
        """Run a command to its end, outside the checkout and without its environment; return stdout."""
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={"PATH": os.defpath, "HOME": str(self.directory), **environment},
            capture_output=True,
            check=False,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a release does, except that the build tool is the locked one: nothing is downloaded."""
    directory = tmp_path_factory.mktemp("wheel")
    command = (
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        str(directory),
        str(ROOT),
    )
    subprocess.run(command, check=True, timeout=STEP_TIMEOUT_S)
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Install the wheel in an empty environment, without network access.

    The locked runtime requirements are links to this environment's packages, so an import of anything that only the
    demo or the tests have fails there.
    """
    directory = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", directory), check=True, timeout=STEP_TIMEOUT_S)
    installed = Installation(directory)
    packages = Path(
        installed.run(installed.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    _link_runtime_requirements(packages)
    command = (*PIP, "--python", installed.python, "install", "--no-index", "--no-deps", wheel)
    subprocess.run(command, check=True, timeout=STEP_TIMEOUT_S)
    return installed


def _link_runtime_requirements(packages: Path) -> None:
    """Link the files of each distribution that requirements.txt names for this machine."""
    here = Path(sysconfig.get_path("purelib"))
    lines = re.findall(r"^([\w.-]+==[^\\\n]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), requirement
        for name in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if not (packages / name).exists():
                (packages / name).symlink_to(here / name)
