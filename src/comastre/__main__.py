"""`python -m comastre`: the same as the command."""

from comastre.cli.main import main

if __name__ == "__main__":  # processes that training spawns import this file too
    main()
