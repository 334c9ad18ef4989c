"""`python -m seewhy` is `seewhy`."""

from seewhy.app.cli import main

main()
