"""`python -m kwire`: the command line, as the console script starts it."""

from kwire.analyzer.cli.start import command

if __name__ == "__main__":
    command()
