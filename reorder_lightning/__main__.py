"""`python -m reorder_lightning`, the same as the `reorder` command."""

from reorder_lightning.cli import main

if __name__ == "__main__":
    main()
