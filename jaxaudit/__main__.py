"""``python -m jaxaudit`` is the ``jaxaudit`` command."""

from jaxaudit.cli import main

if __name__ == "__main__":
    main()
