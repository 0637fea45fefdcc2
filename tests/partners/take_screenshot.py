"""Takes a screenshot of the top of an HTML file in Chromium. Runs in its own environment.

python take_screenshot.py FILE PICTURE WIDTH HEIGHT light|dark
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

file, picture, width, height, scheme = sys.argv[1:]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(color_scheme=scheme, viewport={"width": int(width), "height": int(height)})
    page.goto(Path(file).resolve().as_uri())
    page.screenshot(path=picture)
    browser.close()
