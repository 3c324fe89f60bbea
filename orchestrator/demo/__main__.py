"""`python -m orchestrator.demo`."""

from orchestrator.demo.main import main

if __name__ == "__main__":
    main()
