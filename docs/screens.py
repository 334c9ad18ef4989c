"""Takes the pictures of the page: `make screens`. Fonts differ between machines, so tests compare them roughly."""

import io
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import BrowserContext, sync_playwright

IMAGES = Path(__file__).parent / "images"
SIZE = {"width": 1280, "height": 940}
VIEWS = {
    "page.png": ("?example=coffee", "#figure.answered[aria-busy=false]"),
    "page-compare.png": (
        "?example=coffee&scale=robust&show=compare&compare=gradcam&compare=votes-detail&compare=saliency&compare=lrp",
        "#agreement tbody tr:nth-child(4)",
    ),
}
EXPLAINED = "#figure.answered[aria-busy=false]"
TOUR = (
    ("?example=coffee", EXPLAINED),
    ("?example=coffee&target=968", EXPLAINED),
    ("?example=cat", EXPLAINED),
    ("?example=cat&target=282&against=281", EXPLAINED),
    ("?example=cat&target=282&method=layercam", EXPLAINED),
    VIEWS["page-compare.png"],
    ("?example=cat&target=282&show=inside&inside=blocks.3.1.conv_dw", "#maps li:nth-child(6)"),
)
"""The views of the moving picture."""

FRAME = (800, 588)
SECONDS = 2


def take(context: BrowserContext, url: str, query: str, ready: str) -> bytes:
    """Return what a browser shows of a view of the page, as PNG: once the selector `ready` matches."""
    page = context.new_page()
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    page.goto(f"{url}/{query}")
    page.wait_for_selector(ready)
    page.wait_for_function("() => [...document.querySelectorAll('.map')].every((map) => !map.hidden)")
    page.wait_for_load_state("networkidle")
    screenshot = page.screenshot()
    page.close()
    return screenshot


def film(screenshots: list[Image.Image]) -> None:
    """Write the moving picture of the README."""
    first, *others = [screenshot.convert("RGB").resize(FRAME, Image.Resampling.LANCZOS) for screenshot in screenshots]
    first.save(
        IMAGES / "tour.webp", save_all=True, append_images=others, duration=1000 * SECONDS, loop=0, quality=80, method=6
    )


def main(port: int = 8765) -> None:
    """Start the service and take all pictures."""
    url = f"http://127.0.0.1:{port}"
    service = subprocess.Popen([sys.executable, "-m", "seewhy", "serve", "--port", str(port)])
    try:
        while not _ready(url):
            if service.poll() is not None:
                sys.exit(
                    f"The service did not start; is port {port} taken? Use another one: python -m docs.screens 9000"
                )
            time.sleep(0.5)
        with TemporaryDirectory() as profile, sync_playwright() as playwright:
            context = playwright.chromium.launch_persistent_context(
                profile, executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            context.set_default_timeout(120_000)
            for name, view in VIEWS.items():
                (IMAGES / name).write_bytes(take(context, url, *view))
            tour = [Image.open(io.BytesIO(take(context, url, *view))) for view in TOUR]
            context.close()
            film(tour)
    finally:
        service.terminate()
        service.wait()


def _ready(url: str) -> bool:
    try:
        return bool(urlopen(f"{url}/readyz", timeout=5).status == 200)
    except (URLError, TimeoutError):
        return False


if __name__ == "__main__":
    main(*(int(port) for port in sys.argv[1:2]))
