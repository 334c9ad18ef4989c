"""How fast SeeWhy is beside what else there is: `make bench` runs everything here and writes docs/performance.md."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of pytorch-grad-cam, decided when tqdm is imported
