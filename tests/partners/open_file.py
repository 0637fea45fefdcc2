"""Opens an HTML file in Chromium at several widths, and prints what happened as JSON. Runs in its own environment.

python open_file.py FILE WIDTH ...
"""

import json
import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

address, widths = Path(sys.argv[1]).as_uri(), [int(width) for width in sys.argv[2:]]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    seen = []
    for scheme in ("light", "dark"):
        for width in widths:
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            events: list[str] = []
            page.on("console", lambda message, found=events: found.append(f"console: {message.text}"))
            page.on("pageerror", lambda error, found=events: found.append(f"error: {error}"))
            page.on("dialog", lambda dialog, found=events: (found.append("dialog"), dialog.dismiss()))
            page.on("request", lambda request, found=events: found.append(f"request: {request.url}"))
            page.goto(address)
            page.wait_for_timeout(100)
            seen.append(
                {
                    "events": [event for event in events if event != f"request: {address}"],
                    "overflow": page.evaluate("document.documentElement.scrollWidth") - width,
                    "loaded": page.evaluate("document.scripts.length + document.images.length + frames.length"),
                    "visible": page.locator("h1").first.is_visible(),
                }
            )
            page.close()
        # The checks run as a script of the tests, which the policy of the page rightly forbids.
        page = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
        page.goto(address)
        found = Axe().run(page).response["violations"]
        seen[-1]["violations"] = [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found]
    browser.close()
print(json.dumps(seen))
