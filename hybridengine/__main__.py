"""python -m hybridengine: the command line."""

from hybridengine.command.cli import main

if __name__ == "__main__":
    main()
