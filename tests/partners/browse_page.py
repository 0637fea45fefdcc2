"""Uses the page of a service in Chromium, and prints what it saw as JSON. Runs in its own environment.

python browse_page.py URL TEXT
"""

import json
import sys

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

url, text = sys.argv[1:]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    seen = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme, bypass_csp=False)
        errors, hosts = [], []
        page.on(
            "console", lambda message, found=errors: found.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error, found=errors: found.append(str(error)))
        page.on("request", lambda request, found=hosts: found.append(request.url))
        page.goto(url)
        page.wait_for_function("document.getElementById('facts').textContent.startsWith('Method')")
        page.keyboard.press("Tab")  # the keyboard alone: to the text, and Ctrl+Enter
        page.keyboard.type(text)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#marked mark")
        page.wait_for_function("document.getElementById('rates').children.length > 0")
        seen[scheme] = {
            "errors": errors,
            "hosts": sorted({"/".join(one.split("/")[:3]) for one in hosts}),
            "decision": page.inner_text("#decision"),
            "numbers": page.inner_text("#numbers"),
            "marked": page.inner_text("#marked"),
            "marks": page.locator("#marked mark").count(),
            "summary": page.inner_text("#summary"),
            "lengths": page.inner_text("#lengths"),
            "drift": page.inner_text("#drift"),
        }
        # The checks run as a script of the tests, which the policy of the page rightly forbids.
        checked = browser.new_context(color_scheme=scheme, bypass_csp=True).new_page()
        checked.goto(url)
        checked.fill("#text", text)
        checked.click("button")
        checked.wait_for_selector("#marked mark")
        found = Axe().run(checked).response["violations"]
        seen[scheme]["violations"] = [(one["id"], one["impact"]) for one in found]
    browser.close()
print(json.dumps(seen))
