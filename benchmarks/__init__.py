"""How fast SeeWhy is compared with other software: `make bench` runs everything here and writes docs/performance.md."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of pytorch-grad-cam, decided when tqdm is imported
