"""`python -m seewhy.app.cli` is `seewhy`."""

from seewhy.app.cli import main

main()
