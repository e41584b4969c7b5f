"""`python -m ridgeline` is the same as `ridgeline`."""

from ridgeline.cli import main

if __name__ == "__main__":
    main()
