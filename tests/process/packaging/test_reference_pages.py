"""The pages of the reference are those that the code makes."""

import runpy

import pytest

from tests.process.packaging.conftest import ROOT

PAGES = runpy.run_path(str(ROOT / ".ci" / "reference_pages.py"))["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_up_to_date(name: str) -> None:
    """Commands, codes, metrics and tables, each as the code has them."""
    assert (ROOT / name).read_text() == PAGES[name](), "regenerate: .venv/bin/python .ci/reference_pages.py"
