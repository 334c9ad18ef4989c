"""`python -m app.cli` is `seewhy`."""

from app.cli import main

main()
