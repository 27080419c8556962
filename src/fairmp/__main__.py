"""``python -m fairmp`` is the program."""

from fairmp.cli import main

if __name__ == "__main__":
    main()
