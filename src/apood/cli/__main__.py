"""Run the command line with `python -m apood.cli`, if the package is not installed."""

from apood.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
