"""The speed of SeeWhy compared with other software: `make bench` runs everything and writes docs/performance.md."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of pytorch-grad-cam, decided when tqdm is imported
