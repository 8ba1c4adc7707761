"""`python -m echelon`: the command where its script is not on PATH."""

from echelon.cli.main import main

if __name__ == "__main__":
    main()
