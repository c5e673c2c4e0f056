"""``python -m hetfl``."""

from hetfl.cli import main

main()
