"""`./run soak e2e`: every end-to-end test over Supabase's API; the ordinary run has them over DATABASE_URL."""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.exit(pytest.main([str(here), "--transport", "supabase", "-k", "not test_demo", *sys.argv[1:]]))
