"""Run the command line as `python -m apood`."""

from apood.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
