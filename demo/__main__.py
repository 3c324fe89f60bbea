"""`python -m demo`."""

from demo.main import main

if __name__ == "__main__":
    main()
