"""`python -m apood.cli`, for where the package is not installed."""

from apood.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
